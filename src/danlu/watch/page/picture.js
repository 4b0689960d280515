// Pictures: a value for every layer and step as a colour, and a tensor's histogram over time.

// Perceptually even, dark to light, told apart by every kind of colour vision (points of the palette viridis).
const SCALE = [[68, 1, 84], [72, 40, 120], [62, 74, 137], [49, 104, 142], [38, 130, 142], [31, 158, 137], [53, 183, 121], [109, 205, 89], [180, 222, 44], [253, 231, 37]];

function shade(share) {
  const at = Math.min(1, Math.max(0, share)) * (SCALE.length - 1), low = Math.min(SCALE.length - 2, Math.floor(at));
  return SCALE[low].map((value, i) => Math.round(value + (SCALE[low + 1][i] - value) * (at - low)));
}

/** Without the parts that all of them begin with. */
function shortened(labels) {
  const parts = labels.map((label) => label.split("."));
  let same = 0;
  while (parts.length > 1 && parts.every((one) => one.length > same + 1 && one[same] === parts[0][same])) same += 1;
  return parts.map((one) => one.slice(same).join("."));
}

/** A grid of values as a picture: rows from top to bottom, columns along the axis. `null` is left empty. */
class Picture {
  constructor(onPick) {
    this.onPick = onPick;
    this.card = element("article", { class: "chart" });
    this.head = this.card.appendChild(element("div", { class: "chart-head" }));
    this.box = this.card.appendChild(element("div", { class: "picture" }));
    this.caption = this.card.appendChild(element("p", { class: "caption" }));
    this.sizes = new ResizeObserver(() => this.found && this.paint());
    this.sizes.observe(this.box);
  }

  /** found: {title, rows: [[value]], labels: [text of a row], columns: [x], until, low, high, logarithmic, text(value), note} */
  show(found) {
    this.found = found;
    this.head.replaceChildren(element("h3", {}, found.title), this.legend());
    this.paint();
    this.say(null);
  }

  legend() {
    const { low, high, text } = this.found;
    if (low === null || low === undefined) return element("span", { class: "chip" }, word("nothing_yet"));
    const bar = element("i", { class: "ramp" });
    bar.style.background = `linear-gradient(90deg, ${SCALE.map((c) => `rgb(${c})`).join(", ")})`;
    return element("span", { class: "chip" }, text(low), bar, text(high));
  }

  share(value) {
    const { low, high, logarithmic } = this.found;
    if (logarithmic && low > 0 && high > low) return Math.log(value / low) / Math.log(high / low);
    return high > low ? (value - low) / (high - low) : 0.5;
  }

  paint() {
    const { rows, labels, columns, until } = this.found;
    const named = labels.length <= 40, every = Math.ceil(labels.length / 12);
    const height = Math.max(90, Math.min(420, rows.length * (named ? 15 : 5)));
    const canvas = element("canvas", { width: Math.max(1, columns.length), height: Math.max(1, rows.length), role: "img", "aria-label": this.found.title });
    canvas.style.height = height + "px";
    const context = canvas.getContext("2d"), image = context.createImageData(canvas.width, canvas.height);
    rows.forEach((row, r) => row.forEach((value, c) => {
      if (value === null) return;
      image.data.set([...shade(this.share(value)), 255], 4 * (r * columns.length + c));
    }));
    context.putImageData(image, 0, 0);
    canvas.addEventListener("pointermove", (event) => this.say(this.at(event, canvas)));
    canvas.addEventListener("pointerleave", () => this.say(null));
    if (this.onPick) canvas.addEventListener("click", (event) => this.onPick(labels[this.at(event, canvas).r]));
    const side = element("div", { class: "rows" }, ...labels.filter((_, i) => named || i % every === 0).map((label) => element("span", { title: label }, label)));
    side.style.height = height + "px";
    const foot = element("div", { class: "foot" }, element("span", {}, columns.length ? grouped(columns[0]) : ""), element("span", {}, columns.length ? grouped(until) : ""));
    this.box.replaceChildren(side, element("div", { class: "canvas" }, canvas, foot));
  }

  at(event, canvas) {
    const box = canvas.getBoundingClientRect(), { rows, columns } = this.found;
    const c = Math.min(columns.length - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * columns.length)));
    const r = Math.min(rows.length - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * rows.length)));
    return { r, c };
  }

  say(at) {
    if (!at) return this.caption.replaceChildren(this.found.note || "");
    const { rows, labels, columns, text } = this.found, value = rows[at.r][at.c];
    this.caption.textContent = [word("at_step", { step: grouped(columns[at.c]) }), labels[at.r], value === null ? "–" : text(value)].join(" · ");
  }
}

/** What is shown of layers unless one statistic is chosen: one of each kind of tensor. */
const OVERVIEW = ["parameter_rms", "gradient_rms", "update_rms", "update_ratio", "activation_rms", "attention_logit_max"];

/** Layers by steps for each statistic, and the histograms of one tensor over time. */
class Layers {
  constructor(page) {
    this.page = page;
    this.pictures = new Map();
    this.histogram = new Picture();
    this.kinds = this.tensors = [];
    this.kind = this.select(() => (view.layerKind = this.kind.value || null));
    this.tensor = this.select(() => (view.layer = this.tensor.value));
  }

  select(chosen) {
    const made = element("select");
    made.addEventListener("change", () => {
      chosen();
      this.page.changed();
      this.load().catch(trouble);
    });
    return made;
  }

  /** Look at what a run has: statistics of layers among its signals, and histograms. */
  async arrange(names, histograms) {
    this.kinds = [...new Set(names.filter((name) => LAYER_NAME.test(name)).map((name) => name.split("/").pop()))].sort();
    this.tensors = histograms;
    $("#layers").hidden = !this.kinds.length && !this.tensors.length;
    if ($("#layers").hidden) return;
    if (!this.kinds.includes(view.layerKind)) view.layerKind = null;
    if (!this.tensors.includes(view.layer)) view.layer = null;
    this.words();
    await this.load();
  }

  words() {
    const overview = element("option", { value: "" }, word("overview"));
    this.kind.replaceChildren(overview, ...this.kinds.map((kind) => element("option", { value: kind }, statistic(kind))));
    this.kind.value = view.layerKind || "";
    this.tensor.replaceChildren(...this.tensors.map((name) => element("option", { value: name }, name.replace(/^layer\//, ""))));
    this.tensor.value = this.shownTensor() || "";
    const label = (text, select) => element("label", { class: "control" }, word(text), select);
    $("#layer-controls").replaceChildren(...(this.kinds.length ? [label("statistic", this.kind)] : []), ...(this.tensors.length ? [label("histogram_of", this.tensor)] : []));
  }

  shownTensor() {
    return view.layer || this.tensors.find((name) => /\/update$/.test(name)) || this.tensors[0] || null;
  }

  async load() {
    const run = this.page.focus(), cards = [];
    const overview = this.kinds.filter((kind) => OVERVIEW.includes(kind)).sort((a, b) => OVERVIEW.indexOf(a) - OVERVIEW.indexOf(b));
    for (const kind of view.layerKind ? [view.layerKind] : overview.length ? overview : this.kinds) {
      const found = await source.layers(run, kind);
      if (!found || !found.layers.length) continue;
      if (!this.pictures.has(kind)) this.pictures.set(kind, new Picture());
      this.pictures.get(kind).show({
        ...found, title: statistic(kind), labels: shortened(found.layers), columns: found.steps,
        logarithmic: found.low > 0 && found.high > 20 * found.low, text: write.figure,
        note: found.points > found.steps.length ? word("averaged", { shown: grouped(found.steps.length), all: grouped(found.points) }) : "",
      });
      cards.push(this.pictures.get(kind).card);
    }
    const name = this.shownTensor(), found = name && (await source.histograms(run, name));
    if (run !== this.page.focus()) return;
    if (found && found.steps.length) {
      const note = [word("histogram_note"), found.points > found.steps.length ? word("averaged", { shown: grouped(found.steps.length), all: grouped(found.points) }) : ""];
      this.histogram.show({
        title: `${word("histogram")} · ${name.replace(/^layer\//, "")}`, rows: found.rows, columns: found.steps, until: found.until,
        labels: found.edges.map(([low, high]) => (low < 0 && high > 0 ? "±" + write.figure(high) : write.figure(low < 0 ? low : high))),
        low: found.high / 1e4, high: found.high, logarithmic: true, text: write.share, note: note.filter(Boolean).join(" · "),
      });
      cards.push(this.histogram.card);
    }
    $("#pictures").replaceChildren(...cards);
  }
}

/** A statistic in words. */
function statistic(kind) {
  if (WORDS["layer_" + kind]) return word("layer_" + kind);
  const [tensor, of] = [kind.replace(/_[^_]+$/, ""), kind.split("_").pop()];
  return WORDS["layer_" + tensor] && WORDS["of_" + of] ? `${word("layer_" + tensor)} · ${word("of_" + of)}` : kind.replaceAll("_", " ");
}
