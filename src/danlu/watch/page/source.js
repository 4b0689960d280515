// Where data comes from: the server that sent the page, or the page itself. Both answer the same questions.

const embedded = JSON.parse(document.getElementById("report-data").textContent);

/** A value between known points, straight lines between them; beyond the last ones the line goes on. */
function between(value, from, to) {
  if (from.length < 2) return from.length ? to[0] : value;
  let left = 0, right = from.length - 1;
  while (right - left > 1) {
    const middle = (left + right) >> 1;
    if (from[middle] <= value) left = middle;
    else right = middle;
  }
  const span = from[right] - from[left];
  return span ? to[left] + ((value - from[left]) * (to[right] - to[left])) / span : to[left];
}

/** Where a step lies on an axis of a run. */
function onAxis(axes, axis, step) {
  const known = axes && axes[axis];
  return axis === "step" || !known ? step : between(step, known.steps, known.x);
}

/** One run, all of it in the page. Zooming shows no more than what is there. */
const embeddedSource = {
  live: false,
  async runs() {
    return [{ id: "", status: embedded.status, step: null, total: null }];
  },
  async facts() {
    return { id: "", ...embedded };
  },
  async names() {
    return { names: { "": Object.keys(embedded.curves) }, axes: { "": Object.keys(embedded.axes) } };
  },
  async curves(names, runs, { axis, zoom }) {
    const found = {};
    for (const name of names) {
      const curve = embedded.curves[name];
      found[name] = {};
      if (!curve || (axis !== "step" && !embedded.axes[axis])) continue;
      const moved = (xs) => xs && xs.map((step) => onAxis(embedded.axes, axis, step));
      const one = { ...curve, x: moved(curve.x), mean_x: moved(curve.mean_x) };
      if (zoom) {
        one.shown = one.x.filter((x) => x >= zoom[0] && x <= zoom[1]).length;
        if (curve.shown === curve.points) one.inside = one.shown;
      }
      found[name][""] = one;
    }
    return found;
  },
  async newest(run, names) {
    return Object.fromEntries(names.filter((name) => embedded.curves[name]).map((name) => [name, embedded.curves[name].last]));
  },
  async layers(run, kind) {
    return embedded.layers && embedded.layers[kind];
  },
  async histograms(run, name) {
    return embedded.histograms && embedded.histograms[name];
  },
  async doctor() {
    return embedded.doctor || null;
  },
};

async function ask(question, parameters, signal) {
  const answer = await fetch(`api/${question}?${new URLSearchParams(parameters)}`, { signal });
  const content = await answer.json().catch(() => ({ error: answer.statusText }));
  if (!answer.ok) throw new Error(content.error || answer.statusText);
  return content;
}

const serverSource = {
  live: true,
  runs: async () => (await ask("runs", [])).runs,
  facts: (run) => ask("run", [["run", run]]),
  names: (runs) => ask("names", runs.map((id) => ["run", id])),
  async curves(names, runs, { axis, zoom, points, logX }, signal) {
    const asked = [...names.map((name) => ["name", name]), ...runs.map((id) => ["run", id]), ["axis", axis], ["points", points]];
    if (zoom) asked.push(["from", zoom[0]], ["to", zoom[1]]);
    if (logX) asked.push(["log", "1"]);
    return (await ask("curves", asked, signal)).curves;
  },
  newest: (run, names) => ask("newest", [["run", run], ...names.map((name) => ["name", name])]),
  layers: (run, kind) => ask("layers", [["run", run], ["kind", kind]]),
  histograms: (run, name) => ask("histograms", [["run", run], ["name", name]]),
  doctor: (run) => ask("doctor", [["run", run]]),

  /** Call `news` with the states of runs that changed, `standing` with whether the line to the server stands. */
  follow(news, standing) {
    const stream = new EventSource("api/live"); // comes back by itself, and says what it had last
    stream.addEventListener("runs", (event) => news(JSON.parse(event.data)));
    stream.addEventListener("open", () => standing(true));
    stream.addEventListener("error", () => standing(false));
  },
};

const source = embedded ? embeddedSource : serverSource;
