// Charts: which signals share one, and how uPlot draws them.

const PLAIN = { tick: (v) => (v !== 0 && Math.abs(v) < 1e-3 ? v.toExponential() : String(+v.toPrecision(6))), value: write.figure };
const SHARE = { tick: (v) => +(100 * v).toPrecision(6) + "%", value: write.share };

/** Known charts in reading order. A series: [signal, word of its label, colour, options]; `right` puts it on the right axis. */
const CHARTS = [
  { title: "loss", wide: true, logarithmic: true, unit: "plain", series: [
    ["train/loss", "train_loss", "first", { smooth: true }], ["validation/loss", "validation_loss", "second", { dots: true }]] },
  { title: "gradient_norm", unit: "plain", logarithmic: true, zero: true, series: [["train/gradient_norm", "norm", "first", { smooth: true }]] },
  { title: "learning_rate", unit: "plain", zero: true, series: [["train/learning_rate", "value", "first", {}]] },
  { title: "throughput", unit: "count", zero: true, series: [
    ["train/tokens_per_second", "tokens_per_second", "first", { smooth: true }], ["train/mfu", "mfu", "second", { smooth: true, right: true }]] },
  { title: "step_time", unit: "seconds", zero: true, series: [
    ["time/step", "whole_step", "first", { smooth: true }], ["time/data_wait", "data_wait", "second", { smooth: true, fill: true }]] },
  { title: "memory", unit: "bytes", zero: true, series: [
    ["memory/resident_bytes", "resident", "first", {}], ["memory/device_bytes", "device", "second", {}]] },
  { title: "validation_ratio", unit: "plain", series: [["validation/ratio", "value", "second", { dots: true }]] },
  { title: "loss_scale", unit: "count", series: [["train/loss_scale", "value", "third", {}]] },
];
const OTHER_CHARTS = 12; // signals of the user's own that get a chart each; the rest is named

/** How an event is marked: a line across the chart for what disturbs a run, a tick at its foot for what is routine. */
const EVENT_MARKS = {
  resume: { colour: "second", sign: "┆" },
  skipped_step: { colour: "warn", sign: "┆" },
  stop: { colour: "warn", sign: "┆" },
  interrupted: { colour: "warn", sign: "┆" },
  dropped: { colour: "warn", sign: "┆" },
  checkpoint: { colour: "faint", sign: "▴", tick: true },
  sample: { colour: "third", sign: "▴", tick: true },
};
const QUIET_EVENTS = ["start", "finished"];
const markOf = (kind) => EVENT_MARKS[kind] || { colour: "third", sign: "┆" };

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

/** Divisor and writing of a unit, for values up to `most`. */
function unitOf(name, most) {
  if (name === "count") return { divisor: 1, tick: (v) => write.count(v).replace(".0", ""), value: write.count };
  if (name === "bytes") {
    const power = Math.min(4, Math.max(0, Math.floor(Math.log(most || 1) / Math.log(1024))));
    const suffix = [" B", " KiB", " MiB", " GiB", " TiB"][power];
    return { divisor: 1024 ** power, tick: (v) => +v.toPrecision(6) + suffix, value: (v) => write.bytes(v * 1024 ** power) };
  }
  if (name === "seconds") {
    return most < 1
      ? { divisor: 1e-3, tick: (v) => +v.toPrecision(6) + " ms", value: (v) => write.seconds(v / 1000) }
      : { divisor: 1, tick: (v) => +v.toPrecision(6) + " s", value: write.seconds };
  }
  return { divisor: 1, ...PLAIN };
}

/** Gaussian mean over neighbouring points, so that the smooth curve does not lag; gaps stay gaps. `strength` is 0..100. */
function smoothed(values, strength) {
  const sigma = values.length * 0.1 * (strength / 100) ** 2;
  const reach = Math.ceil(3 * sigma);
  const weights = Array.from({ length: reach + 1 }, (_, i) => Math.exp(-0.5 * (i / sigma) ** 2));
  return values.map((value, at) => {
    if (value === null) return null;
    let sum = 0, total = 0;
    for (let i = Math.max(0, at - reach); i <= Math.min(values.length - 1, at + reach); i += 1) {
      if (values[i] === null) continue;
      const weight = weights[Math.abs(i - at)];
      sum += weight * values[i];
      total += weight;
    }
    return sum / total;
  });
}

/** One chart on the page: a card with title, live values, plot and caption. */
class Chart {
  constructor(spec, curves, events) {
    this.spec = spec;
    this.events = events;
    this.logarithmic = false;
    this.series = spec.series
      .filter(([name]) => curves[name])
      .map(([name, label, tone, options]) => ({ name, label, tone, curve: curves[name], ...options }));
    for (const right of [false, true]) {
      const side = this.series.filter((one) => !!one.right === right);
      const most = Math.max(0, ...side.flatMap((one) => one.curve.values.map(Math.abs)));
      for (const one of side) one.unit = right ? { divisor: 1, ...SHARE } : unitOf(spec.unit, most);
    }
    this.card = element("article", { class: "chart" + (spec.wide ? " wide" : "") });
    this.head = this.card.appendChild(element("div", { class: "chart-head" }));
    this.box = this.card.appendChild(element("div", { class: "plot" }));
    this.caption = this.card.appendChild(element("p", { class: "caption" }));
    this.sizes = new ResizeObserver(() => this.plot && this.plot.setSize(this.size()));
  }

  label(one) {
    return WORDS[one.label] ? word(one.label) : one.label;
  }

  title() {
    return WORDS[this.spec.title] ? word(this.spec.title) : this.spec.title;
  }

  size() {
    return { width: Math.max(200, this.box.clientWidth), height: this.spec.wide ? 320 : 220 };
  }

  /** Draw anew: at first, and whenever the language, the theme, the smoothing or the scale changes. */
  draw(strength) {
    const zoom = this.plot && { min: this.plot.scales.x.min, max: this.plot.scales.x.max };
    if (this.plot) this.plot.destroy();
    this.writeHead();
    this.writeCaption(null);
    this.box.setAttribute("role", "img");
    this.box.setAttribute("aria-label", this.title() + ": " + this.series.map((one) => `${this.label(one)} ${this.lastText(one)}`).join(", "));
    const { tables, drawn } = this.tables(strength);
    this.drawn = drawn;
    this.plot = new uPlot(this.options(drawn), uPlot.join(tables), this.box);
    if (zoom && zoom.min !== null) this.plot.setScale("x", zoom);
    this.sizes.observe(this.box);
  }

  /** The columns for uPlot: of every signal the raw curve, and the smooth one before it where that is asked for. */
  tables(strength) {
    const tables = [], drawn = [];
    const put = (one, steps, values, kind) => {
      const usable = (v) => v !== null && !(this.logarithmic && v <= 0);
      tables.push([steps, values.map((v) => (usable(v) ? v / one.unit.divisor : null))]);
      drawn.push({ one, kind });
    };
    for (const one of this.series) {
      const smooth = one.smooth && strength > 0 && one.curve.values.length > 2;
      put(one, one.curve.steps, one.curve.values, smooth ? "behind" : "raw");
      if (smooth) put(one, one.curve.mean_steps || one.curve.steps, smoothed(one.curve.means || one.curve.values, strength), "smooth");
    }
    return { tables, drawn };
  }

  options(drawn) {
    const soft = colour("soft"), grid = { stroke: colour("grid"), width: 1 }, ticks = { show: false };
    const font = "11px " + getComputedStyle(document.body).fontFamily;
    const rightSide = this.series.find((one) => one.right), leftSide = this.series.find((one) => !one.right);
    const whole = (_, low, high) => [0, Math.max(1, (high || 0) * 1.05)]; // a share is read against all of it
    const range = (_, low, high) => {
      if (low === null || high === null) return [0, 1];
      if (this.spec.zero) return [0, high > 0 ? high * 1.08 : 1];
      const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
      return [low - room, high + room];
    };
    const axis = (one, scale, side) => ({
      scale, side, stroke: soft, ticks, font, size: 60, grid: { ...grid, show: side === 3 || !leftSide }, values: (_, splits) =>
        splits.map((v) => (v === null || (v === 0 && side === 1) ? "" : one.unit.tick(v))), // no 0 % on top of the last step
    });
    // Rounded outwards to one digit, so that the axis always has a mark at both ends.
    const decades = (_, low, high) => {
      if (low === null || high === null) return [1, 10];
      const [below, above] = [low, high].map((v) => 10 ** Math.floor(Math.log10(v)));
      return [Math.floor(low / below) * below, Math.ceil(high / above + 0.01) * above];
    };
    return {
      ...this.size(),
      legend: { show: false },
      padding: [8, rightSide && leftSide ? 0 : 12, 0, 0],
      scales: { x: { time: false }, left: this.logarithmic ? { distr: 3, range: decades } : { range }, right: { range: whole } },
      axes: [
        { stroke: soft, grid: { show: false }, ticks, font, size: 26, space: 56, values: (_, splits) => splits.map((v) => (Number.isInteger(v) ? write.count(v).replace(".0", "") : "")) },
        ...(leftSide ? [axis(leftSide, "left", 3)] : []),
        ...(rightSide ? [axis(rightSide, "right", leftSide ? 1 : 3)] : []),
      ],
      series: [{}, ...drawn.map(({ one, kind }) => ({
        scale: one.right ? "right" : "left",
        stroke: colour(one.tone),
        fill: one.fill && kind !== "behind" ? colour(one.tone) + "22" : undefined,
        alpha: kind === "behind" ? 0.26 : 1,
        width: kind === "behind" ? 1 : 1.8,
        points: { show: one.dots || one.curve.points === 1, size: 6, fill: colour("card"), stroke: colour(one.tone) },
      }))],
      cursor: {
        sync: { key: "danlu" },
        y: false,
        drag: { x: true, y: false },
        points: {
          size: (_, at) => (drawn[at - 1].kind === "smooth" ? 0 : 6), // the values shown are the raw curve's
          fill: (_, at) => colour(drawn[at - 1].one.tone),
        },
        dataIdx: (u, series, hovered, x) => nearest(u.data[0], u.data[series], hovered, x),
      },
      hooks: { setCursor: [(u) => this.showCursor(u)], draw: [(u) => this.drawEvents(u)] },
    };
  }

  writeHead() {
    const title = element("h3", {}, this.title());
    this.chips = this.series.map((one) => {
      const value = element("b", {}, this.lastText(one));
      const mark = element("i");
      mark.style.background = colour(one.tone);
      return { one, value, chip: element("span", { class: "chip" }, mark, this.label(one), value) };
    });
    this.head.replaceChildren(title, ...this.chips.map(({ chip }) => chip));
    if (this.spec.logarithmic) {
      const button = element("button", { type: "button", "aria-pressed": String(this.logarithmic) }, word("logarithmic"));
      button.addEventListener("click", () => {
        this.logarithmic = !this.logarithmic;
        this.draw(smoothing());
        this.head.querySelector("button").focus();
      });
      this.head.append(button);
    }
  }

  lastText(one) {
    const last = one.curve.last;
    return typeof last === "number" ? one.unit.value(last / one.unit.divisor) : last;
  }

  showCursor(u) {
    const inside = u.cursor.idx !== null && u.cursor.left >= 0;
    for (const { one, value } of this.chips) {
      const at = this.drawn.findIndex((entry) => entry.one === one) + 1;
      const index = inside ? u.cursor.idxs[at] : null;
      const found = index === null || index === undefined ? null : u.data[at][index];
      value.textContent = !inside ? this.lastText(one) : typeof found === "number" ? one.unit.value(found) : "–";
    }
    this.writeCaption(inside ? u.data[0][u.cursor.idx] : null);
  }

  /** Under the plot: the step at the cursor and the events near it, or else what the curve leaves out. */
  writeCaption(step) {
    this.caption.classList.toggle("live", step !== null);
    if (step !== null) {
      const near = this.events.filter((event) => Math.abs(this.plot.valToPos(event.step, "x") - this.plot.cursor.left) < 5).slice(0, 3);
      const texts = near.map((event) => `${kindLabel(event.kind)} ${event.step.toLocaleString("en")}${event.message ? ": " + event.message : ""}`);
      this.caption.replaceChildren([word("at_step", { step: step.toLocaleString("en") }), ...texts].join(" · "));
      return;
    }
    const parts = [];
    const largest = this.series.reduce((a, b) => (b.curve.points > a.curve.points ? b : a));
    if (largest.curve.steps.length < largest.curve.points) {
      parts.push(word("thinned", { shown: largest.curve.steps.length.toLocaleString("en"), all: largest.curve.points.toLocaleString("en") }));
    }
    const broken = this.series.reduce((sum, one) => sum + one.curve.not_finite, 0);
    if (broken) parts.push(element("span", { class: "not-finite" }, word("not_finite", { n: broken.toLocaleString("en") })));
    this.caption.replaceChildren(...parts.flatMap((part, i) => (i ? [" · ", part] : [part])));
  }

  drawEvents(u) {
    const { ctx, bbox } = u;
    const pixel = devicePixelRatio;
    ctx.save();
    for (const event of this.events) {
      const x = Math.round(u.valToPos(event.step, "x", true));
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      const mark = markOf(event.kind), foot = bbox.top + bbox.height;
      ctx.fillStyle = ctx.strokeStyle = colour(mark.colour);
      ctx.beginPath();
      if (mark.tick) {
        ctx.moveTo(x, foot - 6 * pixel);
        ctx.lineTo(x + 4 * pixel, foot);
        ctx.lineTo(x - 4 * pixel, foot);
        ctx.fill();
      } else {
        ctx.lineWidth = pixel;
        ctx.setLineDash([4 * pixel, 4 * pixel]);
        ctx.moveTo(x, bbox.top);
        ctx.lineTo(x, foot);
        ctx.stroke();
      }
    }
    ctx.restore();
  }
}

/** The index with a value that is nearest to the cursor: signals that are recorded rarely are read all the same. */
function nearest(steps, values, hovered, x) {
  if (values[hovered] !== undefined) return hovered;
  let left = hovered, right = hovered;
  while (left >= 0 && values[left] === undefined) left -= 1;
  while (right < values.length && values[right] === undefined) right += 1;
  if (left < 0) return right < values.length ? right : null;
  if (right >= values.length) return left;
  return x - steps[left] <= steps[right] - x ? left : right;
}
