// The models: how they and their workers are, and what can be done with them.
import { useAction } from "./actions.js";
import { manage } from "./api.js";
import { html, useState } from "./html.js";
import { Model, keyOf } from "./model.js";
import { Field, Find, Outcome, STATES, has, label } from "./parts.js";

/** With more models than this, one looks for them. */
const MANY = 8;

export function Models({ state, refresh }) {
  const [words, setWords] = useState("");
  const [notice, setNotice] = useState("");
  const { models } = state;
  const many = models.length > MANY;
  const found = many ? models.filter((model) => has(`${label(model)} ${STATES[model.status]}`, words)) : models;
  return html`
    <h1>Models</h1>
    ${many &&
    html`<form class="bar" onSubmit=${(event) => event.preventDefault()}>
      <${Find} words=${words} onChange=${setWords} />
      <p class="muted" role="status">${summary(models)}${words && `; ${found.length} found`}</p>
    </form>`}
    ${state.manages && html`<${Start} models=${models} refresh=${refresh} />`}
    <p class="status" role="status">${notice}</p>
    ${models.length === 0 && html`<p class="empty">No model is loaded.</p>`}
    <div class="cards">
      ${found.map(
        (model) => html`<${Model} key=${keyOf(model)} model=${model} refresh=${refresh} onGone=${setNotice} />`,
      )}
    </div>`;
}

/** How many models there are, and in which states. */
function summary(models) {
  const counts = Object.entries(STATES).map(([state, word]) => [models.filter(({ status }) => status === state).length, word]);
  const those = counts.filter(([count]) => count > 0).map(([count, word]) => `${count} ${word}`);
  return `${models.length} models: ${those.join(", ")}`;
}

const FIELDS = [
  { name: "url", label: "Path, URL or archive", required: true, hint: "On the server, below its model_store, or of the hub: hf://owner/model" },
  { name: "model_name", label: "Name", hint: "Empty: the last part of the path" },
  { name: "model_version", label: "Version", hint: "May be empty" },
  { name: "dtype", label: "Number format", hint: "auto, bf16, fp16 or fp32. Empty: as its files say, else auto" },
  { name: "quantize", label: "Quantization", hint: "int8, int4 and others. Empty: as its files say, else none" },
  { name: "min_worker", label: "Workers, at least", type: "number", hint: "Empty: as its files say" },
  { name: "max_worker", label: "Workers, at most", type: "number", hint: "Empty: as its files say" },
];

/** Registers a model, and goes to the card that it has from then on. */
function Start({ models, refresh }) {
  const known = new Set(models.map(keyOf));
  const { doing, problem, done, act } = useAction(async () => {
    const found = (await refresh())?.models.find((model) => !known.has(keyOf(model)));
    if (found) setTimeout(() => document.getElementById(keyOf(found))?.focus());
  });
  const start = async (event) => {
    event.preventDefault();
    const form = event.target;
    // It loads while nobody waits for this request; its card says how far it is, or why it does not load.
    const given = { ...Object.fromEntries(new FormData(form)), synchronous: false };
    if (await act("Starting", () => manage("POST", "/models", given))) form.reset();
  };
  return html`
    <details class="card" open=${models.length === 0}>
      <summary>Start a model</summary>
      <form class="fields" onSubmit=${start} aria-label="Start a model">
        ${FIELDS.map(
          ({ name, label, hint, type = "text", required = false }) => html`
            <${Field} key=${name} label=${label} hint=${hint} wide=${name === "url"}>
              <input name=${name} type=${type} required=${required} min="1" autocomplete="off" autocapitalize="off"
                spellcheck=${false} />
            <//>`,
        )}
        <div class="actions"><button type="submit" class="primary" disabled=${!!doing}>Start</button></div>
      </form>
      <${Outcome} doing=${doing} done=${done} problem=${problem} />
    </details>`;
}
