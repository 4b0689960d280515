// The first screen: is the run healthy? How it stands, how long it takes yet, what the doctor says, and the figures of now.

function showTitle(facts, state) {
  $("#name").textContent = facts.name;
  document.title = `${facts.name} · danlu`;
  const { title, parameters, settings } = facts.model;
  const known = [title, typeof parameters === "number" ? word("parameters", { n: write.count(parameters) }) : null, ...settings];
  $("#model").textContent = known.filter(Boolean).join(" · ");
  const lost = (facts.events || []).filter((event) => event.kind === "dropped");
  $("#notices").replaceChildren(
    ...[...facts.problems, ...(state && state.problem ? [state.problem] : [])].map((problem) => element("p", { class: "notice" }, word("unreadable") + problem)),
    ...lost.map((event) => element("p", { class: "notice" }, `${kindLabel("dropped")}: ${event.message} (${word("at_step", { step: event.step })})`)),
  );
  $("#written").textContent = source.live
    ? word("served", { version: facts.danlu })
    : word("written", { version: facts.danlu, time: write.time(facts.written) });
}

/** How the run stands, and how far it is. */
function showStatus(state) {
  const place = $("#status"), live = source.live && state.status === "running";
  place.hidden = !state.status;
  if (state.status) {
    place.textContent = word(live ? "running_now" : state.status);
    place.className = "status " + state.status;
  }
  const bar = $("#progress"), known = typeof state.step === "number" && typeof state.total === "number" && state.total > 0;
  bar.hidden = !known;
  if (!known) return;
  const share = Math.min(1, state.step / state.total);
  const done = element("i");
  done.style.width = 100 * share + "%";
  const left = live && state.seconds_left ? word("left", { time: write.duration(state.seconds_left) }) : "";
  bar.replaceChildren(
    element("span", {}, element("b", {}, word("step_of", { step: grouped(state.step), total: grouped(state.total) })), ` ${Math.floor(100 * share)}%`),
    element("span", { class: "track", role: "progressbar", "aria-valuenow": String(Math.floor(100 * share)), "aria-valuemin": "0", "aria-valuemax": "100" }, done),
    element("span", {}, left));
}

const in_language = (text) => (language === "zh" ? text.zh : text.en);

function showDoctor(diagnosis) {
  const place = $("#doctor");
  place.hidden = !diagnosis;
  if (!diagnosis) return;
  if (diagnosis.state === "pending") {
    place.className = "doctor pending";
    place.replaceChildren(element("p", { class: "verdict" }, word("doctor_pending")));
    return;
  }
  if (diagnosis.state === "failed") {
    place.className = "doctor failed";
    place.replaceChildren(element("p", { class: "verdict" }, word("doctor_failed", { error: diagnosis.error })));
    return;
  }
  const worst = diagnosis.worst || "healthy";
  place.className = "doctor " + worst;
  const as_of = typeof diagnosis.step === "number" ? word("doctor_as_of", { step: grouped(diagnosis.step) }) : "";
  const judged = word("doctor_judged", { silent: diagnosis.silent.length, unjudged: Object.keys(diagnosis.not_enough_data).length });
  const head = element("p", { class: "verdict" }, element("b", {}, word("doctor_" + worst)), element("span", { class: "quiet" }, [judged, as_of].filter(Boolean).join(" · ")));
  place.replaceChildren(head, ...diagnosis.findings.map(findingCard));
}

function findingCard(finding, at) {
  const from = typeof finding.step === "number" ? word("from_step", { step: grouped(finding.step) }) : "";
  const summary = element("summary", {}, element("b", {}, in_language(finding.verdict)),
    element("span", { class: "quiet" }, [finding.rule, word("confidence", { share: Math.round(100 * finding.confidence) }), from].filter(Boolean).join(" · ")));
  const patch = Object.entries(finding.patch).map(([field, value]) => `${field}=${JSON.stringify(value)}`).join("  ");
  const card = element("details", { class: "finding " + finding.severity }, summary,
    element("ul", {}, ...finding.why.map((text) => element("li", {}, in_language(text)))),
    element("p", {}, element("b", {}, word("next") + " "), in_language(finding.next)),
    ...(patch ? [element("pre", {}, patch)] : []));
  if (at === 0) card.open = true;
  return card;
}

/** Figures on top. While the run is live they come from the newest values of its curves. */
function showHeadline(facts, newest) {
  const { first_loss, last_loss, last_validation_loss, perplexity, seconds, tokens_per_second, steps } = { ...facts.headline, ...newest };
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
  if (tokens_per_second !== undefined) tiles.push(tile("speed", write.whole(tokens_per_second), newest.mfu === undefined ? "" : `${word("mfu")} ${write.share(newest.mfu)}`));
  if (newest.gradient_norm !== undefined) tiles.push(tile("gradient_norm", figureOrText(newest.gradient_norm), newest.learning_rate === undefined ? "" : `${word("learning_rate")} ${figureOrText(newest.learning_rate)}`));
  if (newest.memory !== undefined) tiles.push(tile("memory", write.bytes(newest.memory), word(newest.memoryOf)));
  if (seconds !== undefined) tiles.push(tile("duration", write.duration(seconds)));
  if (steps !== undefined && $("#progress").hidden) tiles.push(tile("steps", write.whole(steps)));
  $("#headline").replaceChildren(...tiles);
}

/** The newest values of the signals that the tiles show. */
async function newestOf(run) {
  const names = ["train/loss", "validation/loss", "train/tokens_per_second", "train/mfu", "train/gradient_norm", "train/learning_rate", "memory/device_bytes", "memory/resident_bytes"];
  const found = await source.newest(run, names);
  const last = (name) => found[name];
  const device = last("memory/device_bytes");
  const known = {
    mfu: last("train/mfu"), gradient_norm: last("train/gradient_norm"), learning_rate: last("train/learning_rate"),
    memory: device === undefined ? last("memory/resident_bytes") : device, memoryOf: device === undefined ? "resident" : "device",
  };
  if (source.live) Object.assign(known, { last_loss: last("train/loss"), last_validation_loss: last("validation/loss"), tokens_per_second: last("train/tokens_per_second") });
  return Object.fromEntries(Object.entries(known).filter(([, value]) => value !== undefined && (typeof value === "number" || typeof value === "string")));
}
