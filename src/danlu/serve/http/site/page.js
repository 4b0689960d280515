"use strict";
const of = (id) => document.getElementById(id);
let turns = [], asking = null, model = "";

function show(role, text) {
  const article = document.createElement("article");
  article.className = role;
  article.textContent = text;
  of("turns").append(article);
  article.scrollIntoView({ block: "end" });
  return article;
}

/** The data of server-sent events, one after the other, as they come. */
async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    const lines = (rest + part.value).split("\n");
    rest = lines.pop();
    for (const line of lines)
      if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
  }
}

async function ask(text) {
  const chat = of("mode").value === "chat";
  const settings = {
    model, stream: true, stream_options: { include_usage: true },
    temperature: Number(of("temperature").value), max_tokens: Number(of("tokens").value),
  };
  show("user", text);
  if (chat) turns.push({ role: "user", content: text });
  const article = show("assistant", "");
  const headers = { "content-type": "application/json" };
  if (of("key").value) headers.authorization = "Bearer " + of("key").value;
  asking = new AbortController();
  of("stop").hidden = false;
  of("send").disabled = true;
  const began = performance.now();
  let first = null;
  try {
    const answer = await fetch(chat ? "/v1/chat/completions" : "/v1/completions", {
      method: "POST", headers, signal: asking.signal,
      body: JSON.stringify(chat ? { ...settings, messages: turns } : { ...settings, prompt: text }),
    });
    if (!answer.ok) throw new Error((await answer.json()).error.message);
    for await (const event of events(answer)) {
      if (event.error) throw new Error(event.error.message);
      const choice = event.choices[0];
      const piece = choice ? (chat ? choice.delta.content : choice.text) || "" : "";
      if (piece) {
        first ??= performance.now();
        article.textContent += piece;
      }
      if (event.usage) figures(event.usage, began, first);
    }
  } catch (error) {
    if (error.name !== "AbortError") show("error", error.message);
  }
  if (chat && article.textContent) turns.push({ role: "assistant", content: article.textContent });
  else if (chat) turns.pop();  // what was not answered is forgotten
  asking = null;
  of("stop").hidden = true;
  of("send").disabled = false;
}

function figures(usage, began, first) {
  const now = performance.now(), cached = usage.prompt_tokens_details.cached_tokens;
  const rate = first && usage.completion_tokens > 1 ? ((usage.completion_tokens - 1) * 1000) / (now - first) : 0;
  of("figures").textContent =
    `${rate.toFixed(1)} tokens/s · first after ${Math.round((first ?? now) - began)} ms · ` +
    `${cached} of ${usage.prompt_tokens} prompt tokens from the cache`;
}

of("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = of("text").value;
  if (asking || !text.trim()) return;
  of("text").value = "";
  ask(text);
});
of("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    of("ask").requestSubmit();
  }
});
of("stop").addEventListener("click", () => asking && asking.abort());
of("clear").addEventListener("click", () => { turns = []; of("turns").replaceChildren(); of("figures").textContent = ""; });
fetch("/health").then((answer) => answer.json()).then((it) => { model = it.model; of("model").textContent = model; });
