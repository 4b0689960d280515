// Data from the server that sent the page. A report has none of this.

async function ask(question, parameters, signal) {
  const answer = await fetch(`api/${question}?${new URLSearchParams(parameters)}`, { signal });
  const content = await answer.json().catch(() => ({ error: answer.statusText }));
  if (!answer.ok) throw new Error(content.error || answer.statusText);
  return content;
}

/** What a page asks. */
const source = {
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
