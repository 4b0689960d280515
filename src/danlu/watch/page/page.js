// The page: which runs are looked at, what happens when something is chosen, and what the server tells.

const page = {
  states: new Map(), // id -> short state of a run
  facts: null, // of the run in focus
  marks: [], // its events, placed on the axis
  axes: {}, // id -> the axes that a run can be drawn over

  /** The runs that are drawn. */
  runs() {
    const known = (view.runs || []).filter((id) => this.states.has(id));
    return known.length ? known : this.focus() === null ? [] : [this.focus()];
  },

  /** The run whose health is shown: the one asked for, else the first drawn, else the one that was alive last. */
  focus() {
    if (view.focus !== null && this.states.has(view.focus)) return view.focus;
    const drawn = (view.runs || []).find((id) => this.states.has(id));
    if (drawn !== undefined) return drawn;
    const newest = [...this.states.values()].sort((a, b) => (b.seen || 0) - (a.seen || 0))[0];
    return newest ? newest.id : null;
  },

  nameOf: (id) => id,

  /** Eight colours that are told apart by every kind of colour vision; after them hues as far apart as can be. */
  toneOf(id) {
    const at = [...this.states.keys()].indexOf(id);
    return at < TONES.length ? colour(TONES[at]) : `hsl(${(at * 137.5) % 360} 55% ${dark() ? 62 : 42}%)`;
  },

  events() {
    return this.marks;
  },

  changed: () => writePlace(),

  zoomed(range) {
    view.zoom = range;
    writePlace();
    showControls();
    charts.refresh(true);
    for (const chart of charts.charts) if (chart.plot && chart.inSight) chart.draw(); // with what is there, while the detail comes
  },
};

const dark = () => theme === "dark" || (theme === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
const charts = new Charts($("#charts"), page);
const layers = new Layers(page);

function placeMarks() {
  const events = (page.facts.events || []).filter((event) => !event.replaced && !QUIET_EVENTS.includes(event.kind));
  page.marks = events.map((event) => ({ ...event, x: onAxis(page.facts.axes, view.axis, event.step) }));
  showEventKey(page.marks);
}

let loading = 0;
/** Fetch what is known of the runs that are looked at, and show it. */
async function load() {
  loading += 1;
  try {
    await loadRuns();
  } finally {
    loading -= 1;
  }
}

async function loadRuns() {
  const focus = page.focus();
  for (const id of ["health", "curves"]) $("#" + id).hidden = focus === null;
  if (focus === null) {
    $("#name").textContent = word("no_runs");
    return;
  }
  const drawing = source.names(page.runs()).then(({ names, axes }) => {
    page.axes = axes;
    const union = [...new Set(Object.values(names).flat())].sort();
    $("#curves").hidden = !union.length;
    charts.arrange(union);
    charts.refresh();
  });
  const facts = await source.facts(focus);
  if (focus !== page.focus()) return;
  page.facts = facts;
  placeMarks();
  showAll();
  await drawing;
  showControls();
  for (const chart of charts.charts) if (chart.plot) chart.plot.redraw(false); // events came after the curves
  await Promise.all([showNewest(), askDoctor(), layers.arrange(facts.names, facts.histogram_names)]);
}

function showAll() {
  showTitle(page.facts, page.states.get(page.focus()));
  showStatus(page.states.get(page.focus()));
  showPanels(page.facts);
  showRuns();
  showControls();
}

let newest = {};
async function showNewest() {
  newest = await newestOf(page.focus());
  showHeadline(page.facts, newest);
}

let diagnosis = null, askedAt = 0, askAgain;
async function askDoctor() {
  const run = page.focus();
  askedAt = Date.now();
  const found = await source.doctor(run);
  if (run !== page.focus()) return;
  diagnosis = found;
  showDoctor(diagnosis);
  clearTimeout(askAgain);
  if (diagnosis && !diagnosis.current) askAgain = setTimeout(() => run === page.focus() && askDoctor().catch(trouble), 1000);
}

// --- what changes -------------------------------------------------------------------------------------------------------------

/** The server says which runs changed. Curves are fetched only of what is drawn, and only if there is a new step. */
async function heard({ runs, ids }) {
  const before = new Map(page.states), known = ids.filter((id) => !before.has(id)).length;
  page.states = new Map(ids.map((id) => [id, runs.find((run) => run.id === id) || before.get(id)]).filter(([, state]) => state));
  const focus = page.focus();
  if (!page.facts && loading) return undefined;
  if (known || before.size !== page.states.size || !page.facts || page.facts.id !== focus) return load();
  const moved = (id, ...keys) => keys.some((key) => (before.get(id) || {})[key] !== (page.states.get(id) || {})[key]);
  showRuns();
  showStatus(page.states.get(focus));
  if (moved(focus, "events", "segments", "status")) return load();
  if (page.runs().some((id) => moved(id, "step"))) {
    charts.refresh();
    await showNewest();
    if (moved(focus, "step") && Date.now() - askedAt > 5000) await askDoctor();
  }
  return undefined;
}

function trouble(error) {
  $("#notices").replaceChildren(element("p", { class: "notice" }, word("no_answer", { error: error.message })));
}

// --- controls -------------------------------------------------------------------------------------------------------------------

function showControls() {
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
  for (const button of document.querySelectorAll("[data-language]")) button.setAttribute("aria-pressed", String(button.dataset.language === language));
  for (const place of document.querySelectorAll("[data-word]")) place.textContent = word(place.dataset.word);
  const axes = AXES.filter((axis) => axis === "step" || axis === view.axis || Object.values(page.axes).some((known) => known.includes(axis)));
  $("#axis").replaceChildren(...axes.map((axis) => element("option", { value: axis }, word("axis_" + axis))));
  $("#axis").value = view.axis;
  const without = page.runs().filter((id) => page.axes[id] && !page.axes[id].includes(view.axis));
  $("#without").hidden = !without.length;
  $("#without").textContent = word("without_axis", { axis: word("axis_" + view.axis), runs: without.slice(0, 5).join(", ") + (without.length > 5 ? ", …" : "") });
  $("#log-x").checked = view.logX;
  $("#smoothing").value = view.smoothing;
  $("#filter").placeholder = word("filter");
  if ($("#filter").value !== view.filter) $("#filter").value = view.filter;
  $("#runs-filter").placeholder = word("filter_runs");
  $("#whole").hidden = !view.zoom;
  $("#whole").textContent = word("whole");
  $("#theme").textContent = word("theme_" + theme);
  $("#pick-all").textContent = word("pick_all");
  $("#pick-one").textContent = word("pick_one");
  $("#sections").replaceChildren(...["curves", "layers", "samples", "events", "recipe"].filter((id) => !$("#" + id).hidden)
    .map((id) => element("a", { href: "#" + id, "data-to": id }, word(id))));
}

/** The list of runs; a single one needs none. */
function showRuns() {
  const wanted = $("#runs-filter").value.trim().toLowerCase(), drawn = new Set(page.runs()), focus = page.focus();
  $("#runs").hidden = page.states.size < 2;
  document.body.classList.toggle("many", page.states.size > 1);
  if (page.states.size < 2) return;
  $("#runs-count").textContent = word("runs_drawn", { n: drawn.size, all: page.states.size });
  const rows = [...page.states.values()].filter((state) => !wanted || state.id.toLowerCase().includes(wanted)).map((state) => {
    const box = element("input", { type: "checkbox", "data-run": state.id, "aria-label": `${word("draw")} ${state.id}` });
    box.checked = drawn.has(state.id);
    const mark = element("i");
    mark.style.background = page.toneOf(state.id);
    const name = element("button", { type: "button", "data-focus": state.id, title: state.id, "aria-pressed": String(state.id === focus) }, state.id);
    const far = typeof state.step === "number" ? grouped(state.step) : "";
    return element("li", {}, box, mark, name, element("span", { class: "quiet" }, far), element("span", { class: "dot " + (state.status || ""), title: state.status ? word(state.status === "running" ? "running_now" : state.status) : "" }));
  });
  $("#run-list").replaceChildren(...rows);
}

function choose(runs, focus) {
  view.runs = runs;
  view.focus = focus;
  writePlace();
  load().catch(trouble);
}

$("#run-list").addEventListener("change", (event) => {
  const id = event.target.dataset.run;
  if (id === undefined) return;
  const drawn = page.runs().filter((one) => one !== id);
  if (event.target.checked) drawn.push(id);
  choose(drawn.length ? drawn : [id], drawn.includes(page.focus()) ? page.focus() : drawn[0] || id);
});
$("#run-list").addEventListener("click", (event) => {
  const id = event.target.dataset.focus;
  if (id !== undefined) choose(page.runs().includes(id) && page.runs().length > 1 ? page.runs() : [id], id);
});
$("#runs-filter").addEventListener("input", showRuns);
$("#pick-all").addEventListener("click", () => {
  const seen = [...document.querySelectorAll("#run-list [data-run]")].map((box) => box.dataset.run);
  choose(seen, seen.includes(page.focus()) ? page.focus() : seen[0] ?? null);
});
$("#pick-one").addEventListener("click", () => choose([page.focus()], page.focus()));
$("#axis").addEventListener("change", () => setAxis($("#axis").value));
$("#log-x").addEventListener("change", () => {
  view.logX = $("#log-x").checked;
  page.changed();
  charts.refresh(true);
});
$("#smoothing").addEventListener("input", () => {
  view.smoothing = Number($("#smoothing").value);
  page.changed();
  charts.redraw();
});
$("#filter").addEventListener("input", () => {
  view.filter = $("#filter").value;
  page.changed();
  charts.filter();
});
$("#whole").addEventListener("click", () => page.zoomed(null));
$("#theme").addEventListener("click", () => {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  kept.set("theme", theme);
  applyTheme();
  redraw();
});
for (const button of document.querySelectorAll("[data-language]")) {
  button.addEventListener("click", () => {
    language = button.dataset.language;
    kept.set("language", language);
    redraw();
  });
}
$("#sections").addEventListener("click", (event) => {
  if (!event.target.dataset.to) return;
  event.preventDefault(); // the address holds the view
  $("#" + event.target.dataset.to).scrollIntoView({ behavior: "smooth" });
});

function setAxis(axis) {
  view.axis = axis;
  view.zoom = null; // a range of steps is none of seconds
  page.changed();
  placeMarks();
  showControls();
  charts.refresh(true);
}

/** All words and colours anew. */
function redraw() {
  if (!page.facts) return showControls();
  showAll();
  showHeadline(page.facts, newest);
  showDoctor(diagnosis);
  showEventKey(page.marks);
  charts.arrange([...new Set(charts.charts.flatMap((chart) => chart.spec.series.map(([name]) => name)))].sort());
  charts.redraw();
  if (layers.kinds.length || layers.tensors.length) {
    layers.words();
    layers.load().catch(trouble);
  }
}

const KEYS = {
  "/": ["key_filter", () => $("#filter").focus()],
  x: ["key_axis", () => {
    const axes = [...$("#axis").options].map((option) => option.value);
    setAxis(axes[(axes.indexOf(view.axis) + 1) % axes.length]);
  }],
  "+": ["key_in", () => scaleZoom(0.5)],
  "-": ["key_out", () => scaleZoom(2)],
  ArrowLeft: ["key_left", () => moveZoom(-0.25)],
  ArrowRight: ["key_right", () => moveZoom(0.25)],
  0: ["key_whole", () => page.zoomed(null)],
  t: ["key_theme", () => $("#theme").click()],
  "?": ["key_help", () => showHelp()],
};

/** The range that is shown now, of the first chart that is drawn. */
function shownRange() {
  const chart = charts.charts.find((one) => one.plot);
  return chart ? chart.span() : null;
}

function scaleZoom(factor) {
  const range = shownRange();
  if (!range) return;
  const middle = (range[0] + range[1]) / 2, half = ((range[1] - range[0]) / 2) * factor;
  page.zoomed([middle - half, middle + half]);
}

function moveZoom(share) {
  const range = shownRange();
  if (view.zoom && range) page.zoomed(range.map((edge) => edge + share * (range[1] - range[0])));
}

function showHelp() {
  $("#help table").replaceChildren(...Object.entries(KEYS).map(([key, [text]]) =>
    element("tr", {}, element("th", { scope: "row" }, element("kbd", {}, key)), element("td", {}, word(text)))));
  $("#help").showModal();
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && event.target.matches("input[type=search]")) event.target.blur();
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea, dialog[open] *")) return;
  const known = KEYS[event.key];
  if (!known) return;
  event.preventDefault();
  known[1]();
});
addEventListener("hashchange", () => {
  readPlace();
  load().catch(trouble);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

applyTheme();
readPlace();
showControls();
if (source.live) {
  source.follow((news) => heard(news).catch(trouble), (stands) => {
    $("#line").hidden = stands;
    $("#line").textContent = word("line_lost");
  });
}
source.runs().then((states) => {
  for (const state of states) if (!page.states.has(state.id)) page.states.set(state.id, state);
  return page.facts || loading ? undefined : load(); // what is followed may have told before
}).catch(trouble);
