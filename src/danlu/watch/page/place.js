// What is looked at, kept in the address: a link carries the view. Language and theme are the reader's own and stay in the browser.

const AXES = ["step", "tokens", "time", "flops"];

const view = {
  runs: null, // ids that are drawn; null: what the page chooses
  focus: null, // the one whose health and samples are shown
  axis: "step",
  logX: false,
  log: [], // charts with a logarithmic vertical axis
  smoothing: 30,
  zoom: null, // [from, to] in units of the axis
  filter: "",
  layer: null,
  layerKind: null,
};

function readPlace() {
  const given = new URLSearchParams(location.hash.slice(1));
  const number = (name) => (given.get(name) === null || given.get(name).trim() === "" ? NaN : Number(given.get(name)));
  view.runs = given.has("run") ? given.getAll("run") : null;
  view.focus = given.get("focus");
  view.axis = AXES.includes(given.get("x")) ? given.get("x") : "step";
  view.logX = given.get("logx") === "1";
  view.log = given.getAll("log");
  view.smoothing = Number.isFinite(number("smooth")) ? Math.min(100, Math.max(0, number("smooth"))) : 30;
  view.zoom = Number.isFinite(number("from")) && number("from") < number("to") && Number.isFinite(number("to")) ? [number("from"), number("to")] : null;
  view.filter = given.get("filter") || "";
  view.layer = given.get("layer");
  view.layerKind = given.get("statistic");
}

function writePlace() {
  const put = new URLSearchParams();
  if (view.runs) view.runs.forEach((id) => put.append("run", id));
  if (view.focus) put.set("focus", view.focus);
  if (view.axis !== "step") put.set("x", view.axis);
  if (view.logX) put.set("logx", "1");
  view.log.forEach((name) => put.append("log", name));
  if (view.smoothing !== 30) put.set("smooth", view.smoothing);
  if (view.zoom) view.zoom.forEach((edge, i) => put.set(i ? "to" : "from", +edge.toPrecision(9)));
  if (view.filter) put.set("filter", view.filter);
  if (view.layer) put.set("layer", view.layer);
  if (view.layerKind) put.set("statistic", view.layerKind);
  const text = put.toString();
  history.replaceState(null, "", text ? "#" + text : location.pathname + location.search);
}

/** What the reader chose before, where the browser lets the page keep it. */
const kept = {
  get(name) {
    try {
      return localStorage.getItem("danlu." + name);
    } catch {
      return null;
    }
  },
  set(name, value) {
    try {
      localStorage.setItem("danlu." + name, value);
    } catch {
      // a page opened from a file may have no place to keep anything
    }
  },
};

if (["en", "zh"].includes(kept.get("language"))) language = kept.get("language");
const THEMES = ["auto", "light", "dark"];
let theme = THEMES.includes(kept.get("theme")) ? kept.get("theme") : "auto";

function applyTheme() {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}
