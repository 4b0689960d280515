// Which signals share a chart, in which order, and when each is drawn: once it is in sight, and again when something changed.

/** Known charts in reading order. A series: [signal, word of its label, colour, options]; `right` puts it on the right axis. */
const CHARTS = [
  { title: "loss", group: "training", wide: true, unit: "plain", series: [
    ["train/loss", "train_loss", "first", { smooth: true }], ["validation/loss", "validation_loss", "second", { dots: true }]] },
  { title: "gradient_norm", group: "training", unit: "plain", zero: true, series: [["train/gradient_norm", "norm", "first", { smooth: true }], ["train/clip_rate", "clip_rate", "second", { right: true, smooth: true }]] },
  { title: "learning_rate", group: "training", unit: "plain", zero: true, series: [["train/learning_rate", "value", "first", {}]] },
  { title: "throughput", group: "training", unit: "count", zero: true, series: [
    ["train/tokens_per_second", "tokens_per_second", "first", { smooth: true }], ["train/mfu", "mfu", "second", { smooth: true, right: true }]] },
  { title: "step_time", group: "training", unit: "seconds", zero: true, series: [
    ["time/step", "whole_step", "first", { smooth: true }], ["time/data_wait", "data_wait", "second", { smooth: true, fill: true }],
    ["time/forward", "forward", "third", { smooth: true }], ["time/backward", "backward", "fourth", { smooth: true }],
    ["time/communication", "communication", "fifth", { smooth: true }], ["time/optimizer", "optimizer", "sixth", { smooth: true }],
    ["time/other", "other_time", "eighth", { smooth: true }]] },
  { title: "pauses", group: "training", unit: "seconds", zero: true, series: [
    ["time/checkpoint", "checkpoint_time", "first", { dots: true }], ["time/validation", "validation_time", "second", { dots: true }], ["time/recording", "recording", "third", {}]] },
  { title: "memory", group: "training", unit: "bytes", zero: true, series: [
    ["memory/resident_bytes", "resident", "first", {}], ["memory/device_bytes", "device", "second", {}],
    ["memory/parameters_bytes", "memory_parameters", "third", {}], ["memory/gradients_bytes", "memory_gradients", "fourth", {}],
    ["memory/optimizer_bytes", "memory_optimizer", "fifth", {}], ["memory/activations_bytes", "memory_activations", "sixth", {}]] },
  { title: "validation_ratio", group: "training", unit: "plain", series: [["validation/ratio", "value", "second", { dots: true }]] },
  { title: "perplexity", group: "training", unit: "plain", series: [
    ["train/perplexity", "train_loss", "first", { smooth: true }], ["validation/perplexity", "validation_loss", "second", { dots: true }]] },
  { title: "divergence", group: "training", unit: "plain", zero: true, series: [
    ["train/divergence", "train_loss", "first", { smooth: true }], ["validation/divergence", "validation_loss", "second", { dots: true }],
    ["train/objective", "minimised", "third", { smooth: true }]] },
  { title: "margin", group: "training", unit: "plain", series: [
    ["train/margin", "train_loss", "first", { smooth: true }], ["validation/margin", "validation_loss", "second", { dots: true }],
    ["train/chosen_reward", "chosen_reward", "third", { smooth: true }], ["train/rejected_reward", "rejected_reward", "fourth", { smooth: true }]] },
  { title: "preferred", group: "training", unit: "plain", zero: true, series: [
    ["train/accuracy", "train_loss", "first", { smooth: true }], ["validation/accuracy", "validation_loss", "second", { dots: true }]] },
  { title: "skipped", group: "training", unit: "count", zero: true, series: [["train/skipped_steps", "skipped", "second", {}]] },
  { title: "loss_scale", group: "training", unit: "count", series: [["train/loss_scale", "value", "third", {}]] },
];
const GROUPS = ["training", "system", "tokens", "layer", "others"];
const LAYER_NAME = /^layer\/.+\/[^/]+$/; // these are pictures, see picture.js
const TONES = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth"];

/** How an event is marked: a line across the chart for what disturbs a run, a tick at its foot for what is routine. */
const EVENT_MARKS = {
  resume: { colour: "second", sign: "┆" },
  skipped_step: { colour: "warn", sign: "┆" },
  stop: { colour: "warn", sign: "┆" },
  interrupted: { colour: "warn", sign: "┆" },
  dropped: { colour: "warn", sign: "┆" },
  rollback: { colour: "warn", sign: "┆" },
  finding: { colour: "warn", sign: "┆" },
  checkpoint: { colour: "faint", sign: "▴", tick: true },
  sample: { colour: "third", sign: "▴", tick: true },
};
const QUIET_EVENTS = ["start", "finished", "memory"];
const markOf = (kind) => EVENT_MARKS[kind] || { colour: "third", sign: "┆" };

/** The unit that a signal's name tells. */
function unitOf(name) {
  if (/bytes_per_second(@|$)/.test(name)) return "rate";
  if (/bytes(@|$)/.test(name)) return "bytes";
  if (/^time\/|seconds(@|$)/.test(name)) return "seconds";
  if (/(share|utili[sz]ation|_rate|cpu|gpu)(@|$)/.test(name) && !/learning_rate/.test(name)) return "share";
  return "plain";
}

/** The charts of all these signals: the known ones, then one for each of the others, the ranks of one signal together. */
function specsOf(names) {
  const known = CHARTS.map((spec) => ({ ...spec, series: spec.series.filter(([name]) => names.includes(name)) })).filter((spec) => spec.series.length);
  const covered = new Set(CHARTS.flatMap((spec) => spec.series.map(([name]) => name)));
  const others = new Map();
  for (const name of names) {
    if (covered.has(name) || LAYER_NAME.test(name)) continue;
    const [base] = name.split("@");
    others.set(base, [...(others.get(base) || []), name]);
  }
  const own = [...others].map(([base, members]) => {
    const group = GROUPS.includes(base.split("/")[0]) ? base.split("/")[0] : "others";
    members.sort((a, b) => Number(a.split("@")[1] ?? -1) - Number(b.split("@")[1] ?? -1));
    return {
      title: base, group, unit: unitOf(base), zero: unitOf(base) !== "plain",
      series: members.map((name, i) => [name, name === base ? "value" : "@" + name.split("@")[1], TONES[i % TONES.length], { smooth: true }]),
    };
  });
  return [...known, ...own].sort((a, b) => GROUPS.indexOf(a.group) - GROUPS.indexOf(b.group));
}

/** All charts of the page. */
class Charts {
  constructor(place, page) {
    this.place = place;
    this.page = page;
    this.charts = [];
    this.shown = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        const chart = this.charts.find((one) => one.card === entry.target);
        if (!chart) continue;
        chart.inSight = entry.isIntersecting;
        if (chart.inSight && chart.stale) this.load(chart);
      }
    }, { rootMargin: "200px" });
  }

  /** Make the charts of these signals; those that stay keep their place. */
  arrange(names) {
    const wanted = specsOf(names), key = (spec) => spec.title + "\n" + spec.series.map(([name]) => name).join("\n");
    const before = new Map(this.charts.map((chart) => [key(chart.spec), chart]));
    const made = wanted.map((spec) => before.get(key(spec)) || new Chart(spec, this.page));
    for (const chart of this.charts) if (!made.includes(chart)) this.drop(chart);
    const fresh = made.filter((chart) => !this.charts.includes(chart));
    this.charts = made;
    const groups = GROUPS.filter((group) => made.some((chart) => chart.spec.group === group));
    this.place.replaceChildren(...groups.map((group) => {
      const cards = made.filter((chart) => chart.spec.group === group).map((chart) => chart.card);
      const head = element("h3", { class: "group" }, word("group_" + group));
      const part = element("div", { class: "chart-group", id: "group-" + group }, ...(group === "training" ? [] : [head]), element("div", { class: "charts" }, ...cards));
      return part;
    }));
    for (const chart of fresh) {
      chart.stale = true;
      this.shown.observe(chart.card);
    }
    this.filter();
  }

  drop(chart) {
    this.shown.unobserve(chart.card);
    chart.sizes.disconnect();
    chart.clear();
  }

  /** Hide the charts that the filter leaves out. */
  filter() {
    const wanted = view.filter.trim().toLowerCase();
    for (const chart of this.charts) {
      const text = `${chart.title()} ${chart.spec.title} ${chart.spec.series.map(([name]) => name).join(" ")}`.toLowerCase();
      chart.card.hidden = !!wanted && !text.includes(wanted);
    }
    for (const part of this.place.children) part.hidden = [...part.querySelectorAll(".chart")].every((card) => card.hidden);
  }

  /** Something changed: draw anew what is in sight, the rest once it is. With `elsewhere`, answers on the way are of no use. */
  refresh(elsewhere = false) {
    for (const chart of this.charts) {
      chart.stale = true;
      if (elsewhere && chart.asking) chart.asking.abort();
      if (chart.inSight) this.load(chart);
    }
  }

  /** Same data, drawn otherwise. */
  redraw() {
    for (const chart of this.charts) {
      if (!chart.lines.length) continue;
      if (chart.inSight) chart.show(this.linesOf(chart));
      else chart.stale = true;
    }
  }

  /** Fetch and draw; what changes meanwhile is fetched after it, so that no more than one request a chart is under way. */
  async load(chart) {
    if (chart.loading) return;
    chart.loading = true;
    try {
      while (chart.stale && chart.inSight) {
        chart.stale = false;
        const runs = this.page.runs(), columns = Math.round(chart.size().width);
        const points = Math.max(200, Math.min(2 * columns, 8000, Math.round(80000 / runs.length)));
        const names = chart.spec.series.map(([name]) => name);
        chart.asking = new AbortController();
        try {
          chart.found = await source.curves(names, runs, { axis: view.axis, zoom: view.zoom, logX: view.logX, points }, chart.asking.signal);
          chart.show(this.linesOf(chart));
          this.again(chart);
        } catch (error) {
          if (error.name !== "AbortError") chart.message(word("no_answer", { error: error.message }));
        }
      }
    } finally {
      chart.loading = false;
    }
  }

  /** A first sight of a long signal is replaced once the server has read it. */
  again(chart) {
    clearTimeout(chart.later);
    const coarse = Object.values(chart.found).some((runs) => Object.values(runs).some((curve) => curve.coarse));
    if (!coarse) return;
    chart.later = setTimeout(() => {
      chart.stale = true;
      if (chart.inSight) this.load(chart);
    }, 1500);
  }

  /** One run: a colour a signal. Several: a colour a run, the second signal dashed. */
  linesOf(chart) {
    const runs = this.page.runs(), several = runs.length > 1;
    return chart.spec.series.flatMap(([name, label, tone, options], at) =>
      runs.filter((run) => (chart.found[name] || {})[run]).map((run) => {
        const own = chart.spec.series.length > 1 ? ` · ${labelOf(label)}` : "";
        return {
          ...options, run, curve: chart.found[name][run],
          label: several ? this.page.nameOf(run) + own : labelOf(label),
          tone: several ? this.page.toneOf(run) : colour(tone),
          fill: options.fill && !several,
          dash: several && at ? [5, 4] : undefined,
        };
      }));
  }
}
