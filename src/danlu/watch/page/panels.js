// What a run has besides curves: samples, events, checkpoints, tables of facts, the recipe. All text goes in as text, never as markup.

function showSamples(samples) {
  $("#samples").hidden = !samples.length;
  $("#samples .samples").replaceChildren(...samples.map((sample) => {
    const prompt = String(sample.prompt ?? ""), text = String(sample.text ?? "");
    const rest = prompt && text.startsWith(prompt) ? text.slice(prompt.length) : text;
    const notes = [prompt ? null : word("empty_prompt"), sample.step === undefined ? null : word("sample_at", { step: sample.step })];
    return element("figure", { class: "sample" },
      element("figcaption", {}, notes.filter(Boolean).join(" · ")), element("pre", { tabindex: "0" }, element("b", {}, prompt), rest));
  }));
}

function showFacts(section, rows) {
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

function showPanels(facts) {
  showSamples(facts.samples);
  for (const section of ["evaluation", "data", "environment"]) showFacts(section, facts[section]);
  showList("checkpoints", ["step", "size", "time"], facts.checkpoints.map(({ step, bytes, time }) =>
    ({ cells: [grouped(step), write.bytes(bytes), write.time(time)] })));
  const events = (facts.events || []).filter((event) => event.kind !== "sample").reverse(); // samples have a place of their own
  showList("events", ["step", "time", "event", "message"], events.map((event) =>
    ({ cells: [grouped(event.step), write.time(event.time), kindLabel(event.kind), event.message], faded: event.replaced })));
  $("#events .hint").hidden = !(facts.events_total > facts.events.length);
  $("#events .hint").textContent = word("newest_events", { shown: grouped((facts.events || []).length), all: grouped(facts.events_total || 0) });
  $("#recipe").hidden = !facts.recipe;
  $("#recipe pre").textContent = facts.recipe;
}

/** What events of one kind look like on the charts. */
function showEventKey(events) {
  const kinds = [...new Set(events.map((event) => event.kind))];
  $("#event-key").replaceChildren(...kinds.map((kind) => {
    const sign = element("i", {}, markOf(kind).sign);
    sign.style.color = colour(markOf(kind).colour);
    return element("span", { class: "event-mark" }, sign, " " + kindLabel(kind));
  }));
}
