// Data from the page itself, which is a report: one run, all of it. The live page has none of this.

const embedded = JSON.parse(document.getElementById("report-data").textContent);

/** Answers as the server would. Zooming shows no more than what is there. */
const source = {
  live: false,
  async runs() {
    return [{ id: "", status: embedded.status, step: embedded.headline.steps, total: embedded.total }];
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
