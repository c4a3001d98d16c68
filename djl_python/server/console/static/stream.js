// Reads an answer in OpenAI's form, whether it comes as server-sent events or as one piece of JSON.
import { ServerError, request } from "./api.js";

/** The JSON objects of an answer, as they arrive. `signal` stops it. */
export async function* answerTo(path, body, signal) {
  const answer = await request(path, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  if (!answer.headers.get("content-type")?.startsWith("text/event-stream")) {
    yield await answer.json();
    return;
  }
  for await (const data of events(answer.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ServerError(answer.status, chunk.error.message ?? String(chunk.error));
    yield chunk;
  }
  throw new ServerError(answer.status, "The answer broke off.");
}

function brokenOff(error) {
  if (error.name === "AbortError") throw error;
  throw new ServerError(0, "The connection broke off before the answer had ended.");
}

/** The data of each event of a stream of bytes. */
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch(brokenOff);
    if (done) return;
    const parts = (rest + value).split(/\r?\n\r?\n/);
    rest = parts.pop();
    for (const part of parts) {
      const lines = part.split(/\r?\n/).filter((line) => line.startsWith("data:"));
      if (lines.length > 0) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
    }
  }
}

/** What there is of an answer so far, by which model, and whether it was stopped. Times are of performance.now(). */
export class Answer {
  constructor(by, streams) {
    this.by = by;
    this.streams = streams;
    this.stopped = false;
    this.choices = [];
    this.usage = null;
    this.askedMs = performance.now();
    this.firstMs = null;
    this.lastMs = null;
  }

  /** The answer that JSON was made of. */
  static of(json) {
    return json && Object.assign(new Answer(json.by, json.streams), json);
  }

  /** Add a chunk, or a whole answer. */
  add(chunk) {
    this.usage = chunk.usage ?? this.usage;
    for (const choice of chunk.choices ?? []) {
      this.lastMs = performance.now();
      this.firstMs ??= this.lastMs;
      this.#addTo((this.choices[choice.index] ??= { text: "", reasoning: "", calls: [], tokens: [], finish: "" }), choice);
    }
  }

  #addTo(made, choice) {
    const said = choice.delta ?? choice.message ?? { content: choice.text };
    made.text += said.content ?? "";
    made.reasoning += said.reasoning_content ?? "";
    made.tokens.push(...tokensOf(choice.logprobs));
    made.finish = choice.finish_reason ?? made.finish;
    (said.tool_calls ?? []).forEach((call, at) => {
      const to = (made.calls[call.index ?? at] ??= { id: "", name: "", arguments: "" });
      to.id = call.id ?? to.id;
      to.name += call.function?.name ?? "";
      to.arguments += call.function?.arguments ?? "";
    });
  }

  /** How long it took, in a sentence. */
  get timing() {
    if (this.firstMs === null) return "";
    const tokens = this.usage?.completion_tokens;
    const first = `${this.streams ? "first token" : "answered"} after ${Math.round(this.firstMs - this.askedMs)} ms`;
    const seconds = (this.lastMs - this.firstMs) / 1000;
    if (!tokens) return first;
    const speed = tokens > 1 && seconds > 0 ? `, ${((tokens - 1) / seconds).toFixed(1)} tokens/s` : "";
    return `${tokens} ${tokens === 1 ? "token" : "tokens"} for a prompt of ${this.usage.prompt_tokens}, ${first}${speed}`;
  }
}

/** Tokens with log-probabilities, of chats and of completions: [{text, logprob, alternatives: [{text, logprob}]}]. */
function tokensOf(logprobs) {
  if (!logprobs) return [];
  if (logprobs.content) {
    return logprobs.content.map(({ token, logprob, top_logprobs: others }) => ({
      text: token,
      logprob,
      alternatives: (others ?? []).map((one) => ({ text: one.token, logprob: one.logprob })),
    }));
  }
  return (logprobs.tokens ?? []).map((text, at) => ({
    text,
    logprob: logprobs.token_logprobs[at],
    alternatives: Object.entries(logprobs.top_logprobs?.[at] ?? {}).map(([text, logprob]) => ({ text, logprob })),
  }));
}
