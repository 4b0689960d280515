// The page: puts the data into the sections. All text of the run goes in as text, never as markup.

const report = JSON.parse(document.getElementById("report-data").textContent);
const $ = (selector) => document.querySelector(selector);
const smoothing = () => Number($("#smoothing").value);
const kindLabel = (kind) => (WORDS["kind_" + kind] ? word("kind_" + kind) : kind.replaceAll("_", " "));
const figureOrText = (value) => (typeof value === "number" ? write.figure(value) : String(value));

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const marked = (report.events || []).filter((event) => !event.replaced && !QUIET_EVENTS.includes(event.kind));
const { charts, left } = makeCharts(report.curves || {});

function makeCharts(curves) {
  const known = CHARTS.map((spec) => new Chart(spec, curves, marked)).filter((chart) => chart.series.length);
  const covered = new Set(CHARTS.flatMap((spec) => spec.series.map(([name]) => name)));
  const others = Object.keys(curves).filter((name) => !covered.has(name));
  const own = others.slice(0, OTHER_CHARTS).map((name) =>
    new Chart({ title: name, unit: "plain", series: [[name, "value", "third", { smooth: true }]] }, curves, marked));
  return { charts: [...known, ...own], left: others.slice(OTHER_CHARTS) };
}

function showTitle() {
  $("#name").textContent = report.name;
  const { title, parameters, settings } = report.model;
  const facts = [title, typeof parameters === "number" ? word("parameters", { n: write.count(parameters) }) : null, ...settings];
  $("#model").textContent = facts.filter(Boolean).join(" · ");
  $("#status").hidden = !report.status;
  if (report.status) {
    $("#status").textContent = word(report.status);
    $("#status").className = "status " + report.status;
  }
  const lost = (report.events || []).filter((event) => event.kind === "dropped");
  $("#notices").replaceChildren(
    ...report.problems.map((problem) => element("p", { class: "notice" }, word("unreadable") + problem)),
    ...lost.map((event) => element("p", { class: "notice" }, `${kindLabel("dropped")}: ${event.message} (${word("at_step", { step: event.step })})`)),
  );
  $("#written").textContent = word("written", { version: report.danlu, time: write.time(report.written) });
}

function showHeadline() {
  const { first_loss, last_loss, last_validation_loss, perplexity, seconds, tokens_per_second, steps } = report.headline;
  const tile = (label, value, more) => element("div", { class: "tile" },
    element("div", { class: "label" }, word(label)), element("div", { class: "value" }, ...[value].flat()), element("div", { class: "more" }, more || ""));
  const share = (loss) => (typeof loss === "number" && first_loss > 0 ? word("of_first", { share: Math.round((100 * loss) / first_loss) + "%" }) : "");
  const tiles = [];
  if (last_loss !== undefined) {
    const from = first_loss === undefined ? [] : [element("span", { class: "from" }, figureOrText(first_loss) + " → ")];
    tiles.push(tile("last_loss", [...from, figureOrText(last_loss)], share(last_loss)));
  }
  if (last_validation_loss !== undefined) tiles.push(tile("last_validation", figureOrText(last_validation_loss), share(last_validation_loss)));
  if (perplexity !== undefined) tiles.push(tile("perplexity", figureOrText(perplexity)));
  if (tokens_per_second !== undefined) tiles.push(tile("speed", write.whole(tokens_per_second)));
  if (seconds !== undefined) tiles.push(tile("duration", write.duration(seconds)));
  if (steps !== undefined) tiles.push(tile("steps", write.whole(steps)));
  $("#headline").replaceChildren(...tiles);
}

function showCurves() {
  $("#curves").hidden = !charts.length;
  for (const chart of charts) chart.draw(smoothing());
  const kinds = [...new Set(marked.map((event) => event.kind))];
  $("#event-key").replaceChildren(...kinds.map((kind) => {
    const sign = element("i", {}, markOf(kind).sign);
    sign.style.color = colour(markOf(kind).colour);
    return element("span", { class: "event-mark" }, sign, " " + kindLabel(kind));
  }));
  if (left.length) {
    const names = left.slice(0, 6).join(", ") + (left.length > 6 ? ", …" : "");
    $("#event-key").append(word("more_signals", { n: left.length, names }));
  }
}

function showSamples() {
  $("#samples").hidden = !report.samples.length;
  $("#samples .samples").replaceChildren(...report.samples.map((sample) => {
    const prompt = String(sample.prompt ?? ""), text = String(sample.text ?? "");
    const rest = prompt && text.startsWith(prompt) ? text.slice(prompt.length) : text;
    const notes = [prompt ? null : word("empty_prompt"), sample.step === undefined ? null : word("sample_at", { step: sample.step })];
    return element("figure", { class: "sample" },
      element("figcaption", {}, notes.filter(Boolean).join(" · ")), element("pre", { tabindex: "0" }, element("b", {}, prompt), rest));
  }));
}

function showFacts(section) {
  const rows = report[section];
  $("#" + section).hidden = !rows.length;
  $(`#${section} table`).replaceChildren(...rows.map(([key, value]) =>
    element("tr", {}, element("th", { scope: "row" }, keyLabel(key)), element("td", {}, write.fact(key, value)))));
}

function showList(section, heads, rows) {
  $("#" + section).hidden = !rows.length;
  $(`#${section} table`).replaceChildren(
    element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, word(head)))),
    ...rows.map(({ cells, faded }) => element("tr", faded ? { class: "replaced" } : {}, ...cells.map((cell) => element("td", {}, cell)))));
}

function show() {
  document.documentElement.lang = language;
  for (const button of document.querySelectorAll("[data-language]")) button.setAttribute("aria-pressed", String(button.dataset.language === language));
  for (const place of document.querySelectorAll("[data-word]")) place.textContent = word(place.dataset.word);
  showTitle();
  showHeadline();
  showCurves();
  showSamples();
  for (const section of ["evaluation", "data", "environment"]) showFacts(section);
  showList("checkpoints", ["step", "size", "time"], report.checkpoints.map(({ step, bytes, time }) =>
    ({ cells: [step.toLocaleString("en"), write.bytes(bytes), write.time(time)] })));
  showList("events", ["step", "time", "event", "message"], (report.events || []).map((event) =>
    ({ cells: [event.step.toLocaleString("en"), write.time(event.time), kindLabel(event.kind), event.message], faded: event.replaced })));
  const shown = (report.events || []).length;
  $("#events .hint").hidden = !(report.events_total > shown);
  $("#events .hint").textContent = word("newest_events", { shown: shown.toLocaleString("en"), all: (report.events_total || 0).toLocaleString("en") });
  $("#recipe").hidden = !report.recipe;
  $("#recipe pre").textContent = report.recipe;
}

for (const button of document.querySelectorAll("[data-language]")) {
  button.addEventListener("click", () => {
    language = button.dataset.language;
    show();
  });
}
$("#smoothing").addEventListener("input", () => charts.forEach((chart) => chart.draw(smoothing())));
$("#charts").append(...charts.map((chart) => chart.card));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showCurves);
show();
