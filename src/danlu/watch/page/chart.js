// One line chart: a card with title, values, plot and caption. Each line has points of its own (uPlot's mode 2).

const UNITS = {
  plain: () => ({ divisor: 1, tick: (v) => (v !== 0 && Math.abs(v) < 1e-3 ? v.toExponential() : String(+v.toPrecision(6))), value: write.figure }),
  share: () => ({ divisor: 1, tick: (v) => +(100 * v).toPrecision(6) + "%", value: write.share }),
  count: () => ({ divisor: 1, tick: (v) => write.count(v).replace(".0", ""), value: write.count }),
  bytes(most) {
    const power = Math.min(4, Math.max(0, Math.floor(Math.log(most || 1) / Math.log(1024))));
    const suffix = [" B", " KiB", " MiB", " GiB", " TiB"][power];
    return { divisor: 1024 ** power, tick: (v) => +v.toPrecision(6) + suffix, value: (v) => write.bytes(v * 1024 ** power) };
  },
  rate(most) {
    const bytes = UNITS.bytes(most);
    return { divisor: bytes.divisor, tick: (v) => bytes.tick(v) + "/s", value: (v) => bytes.value(v) + "/s" };
  },
  seconds: (most) => (most < 1
    ? { divisor: 1e-3, tick: (v) => +v.toPrecision(6) + " ms", value: (v) => write.seconds(v / 1000) }
    : { divisor: 1, tick: (v) => +v.toPrecision(6) + " s", value: write.seconds }),
};

/** A count with as many digits as it has, up to four. */
function short(value) {
  const power = Math.max(0, Math.min(4, Math.floor(Math.log10(Math.abs(value) || 1) / 3)));
  return +(value / 1000 ** power).toPrecision(4) + ["", "k", "M", "B", "T"][power];
}

const AXIS_UNITS = {
  step: (v) => (Number.isInteger(v) ? short(v) : ""),
  tokens: (v) => short(v),
  flops: (v) => (v ? v.toExponential(Number.isInteger(v / 10 ** Math.floor(Math.log10(Math.abs(v)))) ? 0 : 1) : "0"),
  time: (v) => (v === 0 ? "0" : v < 120 ? +v.toPrecision(4) + " s" : v < 7200 ? +(v / 60).toPrecision(4) + " min" : +(v / 3600).toPrecision(4) + " h"),
};

/** The place on the axis in words. */
function placeText(axis, x) {
  if (axis === "step") return word("at_step", { step: grouped(Math.round(x)) });
  if (axis === "time") return write.duration(x);
  if (axis === "flops") return x.toExponential(2) + " FLOP";
  return `${write.count(x)} ${word("axis_tokens")}`;
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

/** The index of the x that is nearest and has a value; xs rise. */
function nearest(xs, ys, x) {
  let low = 0, high = xs.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle + 1;
    else high = middle;
  }
  let left = low - 1, right = low;
  while (left >= 0 && ys[left] === null) left -= 1;
  while (right < xs.length && ys[right] === null) right += 1;
  if (left < 0) return right < xs.length ? right : null;
  if (right >= xs.length) return left;
  return x - xs[left] <= xs[right] - x ? left : right;
}

const CHIPS = 8; // lines that are named above the plot; with more, the one at the cursor is named below it
const MANY = 12; // lines beyond which only smooth curves are drawn

class Chart {
  /** `page` says what is looked at: zoom, axis, smoothing, events; and takes what is done to the plot: zoomed(range), changed(). */
  constructor(spec, page) {
    this.spec = spec;
    this.page = page;
    this.lines = [];
    this.card = element("article", { class: "chart" + (spec.wide ? " wide" : "") });
    this.head = this.card.appendChild(element("div", { class: "chart-head" }));
    this.box = this.card.appendChild(element("div", { class: "plot" }));
    this.caption = this.card.appendChild(element("p", { class: "caption" }));
    this.sizes = new ResizeObserver(() => this.plot && this.box.clientWidth && this.plot.setSize(this.size()));
    this.sizes.observe(this.box);
    this.writeHead();
  }

  get logarithmic() {
    return view.log.includes(this.spec.title);
  }

  size() {
    return { width: Math.max(200, this.box.clientWidth), height: this.spec.wide ? 320 : 220 };
  }

  /** Lines: {label, tone (a colour), dash, curve, right, smooth, dots, fill, unit}. Draws them in place of what was there. */
  show(lines) {
    this.lines = lines;
    for (const right of [false, true]) {
      const side = lines.filter((one) => !!one.right === right);
      const most = side.reduce((top, one) => one.curve.y.reduce((a, v) => Math.max(a, Math.abs(v || 0)), top), 0);
      for (const one of side) one.scale = UNITS[right ? "share" : this.spec.unit](most);
    }
    this.draw();
  }

  /** A plot that looks as it should gets new data and keeps the cursor; else it is made anew. */
  draw() {
    this.writeHead();
    this.writeCaption(null);
    if (!this.lines.length || !this.box.clientWidth) return this.clear();
    this.box.setAttribute("role", "img");
    this.box.setAttribute("aria-label", `${this.title()}: ` + this.lines.slice(0, 20).map((one) => `${one.label} ${this.lastText(one)}`).join(", "));
    this.drawn = this.tables();
    const look = this.look(), data = [null, ...this.drawn.map(({ xs, ys }) => [xs, ys])];
    if (this.plot && look === this.lookOfPlot) {
      this.plot.setData(data);
    } else {
      this.clear();
      this.plot = new uPlot(this.options(), data, this.box);
      this.lookOfPlot = look;
    }
    this.drawnAt ??= performance.now(); // the first time, since the page was asked for
    this.card.dataset.drawn = String(Number(this.card.dataset.drawn || 0) + 1);
  }

  clear() {
    if (this.plot) this.plot.destroy();
    this.plot = null;
  }

  /** All that `options` goes by. */
  look() {
    const lines = this.drawn.map(({ one, kind }) => [kind, one.tone, !!one.right, one.dash, one.fill, one.scale.divisor]);
    return JSON.stringify([view.axis, view.logX, this.logarithmic, colour("soft"), colour("grid"), this.lines.length, lines]);
  }

  /** What is drawn of every line: the raw curve, and over it the smooth one where that is asked for. */
  tables() {
    const drawn = [], bare = view.logX ? (x) => x > 0 : () => true;
    const put = (one, xs, ys, kind) => {
      const usable = (v) => v !== null && !(this.logarithmic && v <= 0);
      const at = xs.map((_, i) => i).filter((i) => bare(xs[i]));
      drawn.push({ one, kind, xs: at.map((i) => xs[i]), ys: at.map((i) => (usable(ys[i]) ? ys[i] / one.scale.divisor : null)) });
    };
    for (const one of this.lines) {
      const { x, y, mean_x, mean } = one.curve;
      const smooth = one.smooth && view.smoothing > 0 && y.length > 2;
      if (!smooth || this.lines.length <= MANY) put(one, x, y, smooth ? "behind" : "raw");
      if (smooth) put(one, mean_x || x, smoothed(mean || y, view.smoothing), "smooth");
    }
    return drawn;
  }

  /** The part of the axis that is shown. */
  span() {
    const ends = this.drawn.flatMap(({ xs }) => (xs.length ? [xs[0], xs[xs.length - 1]] : []));
    const [low, high] = view.zoom || [Math.min(...ends), Math.max(...ends)];
    if (!ends.length) return [0, 1];
    return low < high ? [low, high] : [low - 0.5, high + 0.5];
  }

  /** Smallest and largest value in sight of the lines on one side. */
  extent(right) {
    let low = Infinity, high = -Infinity;
    const [from, to] = this.span();
    for (const { one, xs, ys } of this.drawn) {
      if (!!one.right !== right) continue;
      for (let i = 0; i < xs.length; i += 1) {
        if (ys[i] === null || xs[i] < from || xs[i] > to) continue;
        if (ys[i] < low) low = ys[i];
        if (ys[i] > high) high = ys[i];
      }
    }
    return low <= high ? [low, high] : null;
  }

  options() {
    const soft = colour("soft"), grid = { stroke: colour("grid"), width: 1 }, ticks = { show: false };
    const font = "11px " + getComputedStyle(document.body).fontFamily;
    const right = this.lines.find((one) => one.right), left = this.lines.find((one) => !one.right);
    const axis = (one, scale, side) => ({
      scale, side, stroke: soft, ticks, font, size: 60, grid: { ...grid, show: side === 3 || !left },
      values: (_, splits) => splits.map((v) => (v === null || (v === 0 && side === 1) ? "" : one.scale.tick(v))), // no 0 % on top of the last step
    });
    const distribution = (on) => (on ? { distr: 3 } : {});
    return {
      mode: 2,
      ...this.size(),
      legend: { show: false },
      padding: [8, right && left ? 0 : 12, 0, 0],
      scales: {
        x: { time: false, ...distribution(view.logX), range: () => this.span() },
        left: { ...distribution(this.logarithmic), range: () => this.range(false) },
        right: { range: () => this.range(true) },
      },
      axes: [
        { scale: "x", stroke: soft, grid: { show: false }, ticks, font, size: 26, space: 64, values: (_, splits) => splits.map((v) => (v === null ? "" : AXIS_UNITS[view.axis](v))) },
        ...(left ? [axis(left, "left", 3)] : []),
        ...(right ? [axis(right, "right", left ? 1 : 3)] : []),
      ],
      series: [null, ...this.drawn.map(({ one, kind }) => ({
        facets: [{ scale: "x", auto: true }, { scale: one.right ? "right" : "left", auto: true }],
        paths: uPlot.paths.linear(),
        stroke: one.tone,
        dash: kind === "behind" ? undefined : one.dash,
        fill: one.fill && kind !== "behind" ? one.tone + "22" : undefined,
        alpha: kind === "behind" ? 0.26 : 1,
        width: kind === "behind" ? 1 : this.lines.length > MANY ? 1.2 : 1.8,
      }))],
      cursor: {
        sync: { key: "danlu", scales: ["x", null] },
        y: false,
        drag: { x: true, y: false, setScale: false },
        points: {
          show: this.drawn.length <= 2 * CHIPS,
          size: (_, at) => (this.drawn[at - 1].kind === "smooth" && this.lines.length <= MANY ? 0 : 6), // the values shown are the raw curve's
          fill: (_, at) => this.drawn[at - 1].one.tone,
        },
        dataIdx: (_, at, __, x) => nearest(this.drawn[at - 1].xs, this.drawn[at - 1].ys, x),
        bind: { dblclick: () => () => this.page.zoomed(null) },
      },
      hooks: {
        setCursor: [(u) => this.showCursor(u)],
        draw: [(u) => this.drawDots(u), (u) => this.drawEvents(u)],
        setSelect: [(u) => u.select.width > 4 && this.page.zoomed([u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")])],
      },
    };
  }

  range(right) {
    const found = this.extent(right);
    if (right) return [0, Math.max(1, (found ? found[1] : 0) * 1.05)]; // a share is read against all of it
    if (!found) return this.logarithmic ? [1, 10] : [0, 1];
    const [low, high] = found;
    if (this.logarithmic) { // outwards to one digit, so that the axis always has a mark at both ends
      const [below, above] = [low, high].map((v) => 10 ** Math.floor(Math.log10(v)));
      return [Math.floor(low / below) * below, Math.ceil(high / above + 0.01) * above];
    }
    if (this.spec.zero && low >= 0) return [0, high > 0 ? high * 1.08 : 1];
    const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
    return [low - room, high + room];
  }

  title() {
    return labelOf(this.spec.title);
  }

  lastText(one) {
    const last = one.curve.last;
    return typeof last === "number" ? one.scale.value(last / one.scale.divisor) : String(last);
  }

  writeHead() {
    const title = element("h3", {}, this.title());
    this.chips = this.lines.length > CHIPS ? [] : this.lines.map((one) => {
      const value = element("b", {}, this.lastText(one));
      const mark = element("i");
      mark.style.background = one.dash ? `repeating-linear-gradient(90deg, ${one.tone} 0 4px, transparent 4px 6px)` : one.tone;
      return { one, value, chip: element("span", { class: "chip" }, mark, one.label, value) };
    });
    const button = element("button", { type: "button", class: "log", "aria-pressed": String(this.logarithmic) }, word("logarithmic"));
    button.addEventListener("click", () => {
      view.log = this.logarithmic ? view.log.filter((name) => name !== this.spec.title) : [...view.log, this.spec.title];
      this.page.changed();
      this.draw();
      this.head.querySelector(".log").focus();
    });
    const more = this.lines.length > CHIPS ? [element("span", { class: "chip" }, word("lines", { n: this.lines.length }))] : [];
    this.head.replaceChildren(title, ...this.chips.map(({ chip }) => chip), ...more, button);
  }

  showCursor(u) {
    const inside = u.cursor.left >= 0;
    const at = (one) => this.drawn.findIndex((entry) => entry.one === one) + 1;
    for (const { one, value } of this.chips) {
      const index = inside ? u.cursor.idxs[at(one)] : null;
      const found = index === null || index === undefined ? null : this.drawn[at(one) - 1].ys[index];
      value.textContent = !inside ? this.lastText(one) : typeof found === "number" ? one.scale.value(found) : "–";
    }
    this.writeCaption(inside ? u : null);
  }

  /** The drawn line that passes nearest below or above the cursor. */
  closest(u) {
    let best = null;
    this.drawn.forEach((entry, i) => {
      const index = u.cursor.idxs[i + 1];
      if (entry.kind === "behind" || index === null || index === undefined) return;
      const away = Math.abs(u.valToPos(entry.ys[index], entry.one.right ? "right" : "left") - u.cursor.top);
      if (!best || away < best.away) best = { ...entry, index, away };
    });
    return best;
  }

  /** Under the plot: what is at the cursor and the events near it, or else what the curves leave out. */
  writeCaption(u) {
    this.caption.classList.toggle("live", !!u);
    if (u) {
      const first = this.drawn[0], index = u.cursor.idxs[1];
      const x = index === null || index === undefined ? u.posToVal(u.cursor.left, "x") : first.xs[index];
      const parts = [placeText(view.axis, this.lines.length > CHIPS ? u.posToVal(u.cursor.left, "x") : x)];
      const near = this.lines.length > CHIPS ? this.closest(u) : null;
      if (near) parts.push(`${near.one.label} ${near.one.scale.value(near.ys[near.index])}`);
      for (const event of this.page.events().filter((one) => Math.abs(u.valToPos(one.x, "x") - u.cursor.left) < 5).slice(0, 3)) {
        parts.push(`${kindLabel(event.kind)} ${grouped(event.step)}${event.message ? ": " + event.message : ""}`);
      }
      this.caption.replaceChildren(parts.join(" · "));
      return;
    }
    const parts = [], sum = (key) => this.lines.reduce((all, one) => all + one.curve[key], 0);
    const [shown, inside, broken] = ["shown", "inside", "not_finite"].map(sum);
    if (shown < inside) parts.push(word("thinned", { shown: grouped(shown), all: grouped(inside) }));
    if (broken) parts.push(element("span", { class: "not-finite" }, word("not_finite", { n: grouped(broken) })));
    this.caption.replaceChildren(...parts.flatMap((part, i) => (i ? [" · ", part] : [part])));
  }

  /** Values that are recorded rarely are seen as such; a single one would not be seen at all without. */
  drawDots(u) {
    const { ctx, bbox } = u;
    ctx.save();
    for (const { one, xs, ys } of this.drawn) {
      if (!(one.dots || one.curve.points === 1) || xs.length > bbox.width / 8) continue;
      ctx.strokeStyle = one.tone;
      ctx.fillStyle = colour("card");
      ctx.lineWidth = 1.5 * devicePixelRatio;
      ctx.setLineDash([]);
      for (let i = 0; i < xs.length; i += 1) {
        const x = u.valToPos(xs[i], "x", true);
        if (ys[i] === null || x < bbox.left || x > bbox.left + bbox.width) continue;
        ctx.beginPath();
        ctx.arc(x, u.valToPos(ys[i], one.right ? "right" : "left", true), 3 * devicePixelRatio, 0, 2 * Math.PI);
        ctx.fill();
        ctx.stroke();
      }
    }
    ctx.restore();
  }

  drawEvents(u) {
    const { ctx, bbox } = u;
    const pixel = devicePixelRatio;
    ctx.save();
    for (const event of this.page.events()) {
      if (view.logX && event.x <= 0) continue;
      const x = Math.round(u.valToPos(event.x, "x", true));
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

  message(text) {
    this.caption.replaceChildren(element("span", { class: "not-finite" }, text));
  }
}
