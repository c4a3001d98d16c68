// A request of the playground as others would send it: with curl, with OpenAI's Python client, and in LMI's form.
import { ROOT, predictPath } from "./api.js";
import { curl } from "./curl.js";
import { html, useState } from "./html.js";
import { storedKey } from "./key.js";
import { PATHS } from "./parameters.js";
import { CopyButton, visible } from "./parts.js";

/** What the client's methods have arguments for; everything else goes into `extra_body`. */
const ARGUMENTS = {
  chat: `messages model frequency_penalty logit_bias logprobs max_completion_tokens max_tokens metadata modalities n
    parallel_tool_calls prediction presence_penalty prompt_cache_key prompt_cache_retention reasoning_effort
    response_format safety_identifier seed service_tier stop store stream stream_options temperature tool_choice tools
    top_logprobs top_p user`.split(/\s+/),
  completion: `model prompt best_of echo frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop
    stream stream_options suffix temperature top_p user`.split(/\s+/),
};
/** OpenAI's names of parameters that LMI calls otherwise. */
const LMI_NAMES = {
  max_tokens: "max_new_tokens",
  min_tokens: "min_new_tokens",
  stop: "stop_sequences",
  bad_words: "bad_sequences",
  truncate_prompt_tokens: "truncate",
};
/** What is not a parameter in LMI, but is said by the path or in the body itself. */
const LMI_ELSEWHERE = ["model", "prompt", "stream", "stream_options"];

/** Tokens of a completion that does not say how many; LMI has another default. */
export const MAX_TOKENS = 32;

const asJson = (path, body) =>
  curl(path, { type: "application/json", data: visible(JSON.stringify(body, null, 2)), streams: body.stream });

/** A value of JSON as Python writes it. */
function python(value, indent = "    ") {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value !== "object") return visible(JSON.stringify(value));
  const deeper = `${indent}    `;
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  const entries = Array.isArray(value)
    ? value.map((one) => python(one, deeper))
    : Object.entries(value).map(([key, one]) => `${visible(JSON.stringify(key))}: ${python(one, deeper)}`);
  const line = entries.join(", ");
  if (line.length < 80 && !line.includes("\n")) return open + line + close;
  return `${open}\n${entries.map((entry) => `${deeper}${entry},\n`).join("")}${indent}${close}`;
}

function openai(mode, body, query) {
  const [method, part] = mode === "chat" ? ["chat.completions", "message.content"] : ["completions", "text"];
  const known = Object.entries(body).filter(([name]) => ARGUMENTS[mode].includes(name));
  const extra = Object.entries(body).filter(([name]) => !ARGUMENTS[mode].includes(name));
  const lines = known.map(([name, value]) => `    ${name}=${python(value)},`);
  if (extra.length > 0) lines.push(`    extra_body=${python(Object.fromEntries(extra))},`);
  const calls = body.tools ? ` or choice.${part.replace("content", "tool_calls")}` : "";
  const streamed = `choice.${part}${calls}`.replaceAll("message", "delta");
  const shown = body.stream
    ? `for chunk in answer:
    for choice in chunk.choices:
        print(${streamed} or "", end="", flush=True)`
    : `for choice in answer.choices:
    print(choice.${part}${calls})`;
  const more = Object.keys(query).length > 0 ? `, default_query=${python(query)}` : "";
  const [imports, key] = storedKey() ? ["import os\n\n", 'os.environ["API_KEY"]'] : ["", '"none"'];
  return `${imports}from openai import OpenAI

client = OpenAI(base_url=${JSON.stringify(`${ROOT}v1`)}, api_key=${key}${more})
answer = client.${method}.create(
${lines.join("\n")}
)
${shown}`;
}

/** The request in LMI's form, and a remark on what that can't say. */
function lmi(mode, body, path, names) {
  if (mode === "chat") {
    const { model: _, ...rest } = body;
    return { text: asJson(path, rest), remark: "" };
  }
  const parameters = {};
  const left = [];
  for (const [name, value] of Object.entries(body)) {
    const known = LMI_NAMES[name] ?? name;
    if (LMI_ELSEWHERE.includes(name)) continue;
    if (name === "logprobs") Object.assign(parameters, { details: true, top_n_tokens: value });
    else if (names.includes(known)) parameters[known] = value;
    else left.push(name);
  }
  parameters.max_new_tokens ??= MAX_TOKENS;
  if (body.temperature !== 0) parameters.do_sample = true; // LMI is greedy unless it is told to draw
  const made = { inputs: body.prompt, parameters, ...(body.stream ? { stream: true } : {}) };
  return { text: asJson(path, made), remark: left.length > 0 ? `LMI has no ${left.join(", ")}.` : "" };
}

/** All forms of a request: [{title, text, remark}]. `openapi` says which parameters LMI has. */
export function snippetsOf(openapi, mode, body, { several, model, query }) {
  const search = new URLSearchParams(query).toString();
  const path = PATHS[mode] + (search && `?${search}`);
  const version = query.model_version ? model.version : "";
  const predict = several || version ? predictPath({ name: model.name, version }) : "/invocations";
  const names = Object.keys(openapi.components.schemas.LmiParameters.properties);
  return [
    { title: "curl", text: asJson(path, body), remark: "" },
    { title: "Python", text: openai(mode, body, query), remark: "" },
    { title: "LMI", ...lmi(mode, body, predict, names) },
  ];
}

/** `summary` says in which forms they are. */
export function Snippets({ snippets, summary }) {
  const [chosen, setChosen] = useState(0);
  const { title, text, remark } = snippets[chosen];
  const tabs = html`
    <fieldset class="choose">
      <legend class="unseen">Written for</legend>
      ${snippets.map(
        ({ title }, at) => html`<label key=${title}><input type="radio" name="snippet" checked=${at === chosen}
          onChange=${() => setChosen(at)} /><span>${title}</span></label>`,
      )}
    </fieldset>`;
  return html`
    <details class="snippets card">
      <summary>${summary}</summary>
      <div class="bar">
        ${snippets.length > 1 ? tabs : html`<span class="muted">For a shell${storedKey() && ", with the key in API_KEY"}</span>`}
        <${CopyButton} text=${text} what=${title} />
      </div>
      <pre class="snippet" tabindex="0" aria-label=${`The request with ${title}`}><code>${text}</code></pre>
      ${remark && html`<p class="muted">${remark}</p>`}
    </details>`;
}
