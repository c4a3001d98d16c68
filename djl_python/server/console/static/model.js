// One version of a model: how it and its workers are, what is being done with it, and why it does not load.
import { Actions } from "./actions.js";
import { html, useId } from "./html.js";
import { Badge, Reason, bytes, label, span, visible } from "./parts.js";

/** Of its card in the page. */
export const keyOf = ({ name, version }) => `model/${name}/${version}`;

export function Model({ model, refresh, onGone }) {
  const { operator } = model;
  const id = useId();
  return html`
    <article class="card" id=${keyOf(model)} tabindex="-1" aria-labelledby=${id}>
      <header class="card-head">
        <h2 id=${id}><bdi>${visible(model.name)}</bdi> ${model.version && html`<span class="of">version <bdi>${visible(model.version)}</bdi></span>`}</h2>
        <${Badge} state=${model.status} />
      </header>
      ${model.engine && html`<p class="muted">${model.engine}</p>`}
      <dl class="facts">
        <div><dt>Workers ready</dt><dd>${model.ready_workers} of ${model.all_workers}</dd></div>
        <div><dt>In flight</dt><dd>${model.in_flight}</dd></div>
        <div><dt>Queued</dt><dd>${model.queued}</dd></div>
        <div><dt>Registered</dt><dd>${span(Date.now() / 1000 - model.registered_s)} ago</dd></div>
        ${model.max_model_len > 0 && html`<div><dt>Context</dt><dd>${model.max_model_len.toLocaleString("en")} tokens</dd></div>`}
        ${model.weight_bytes > 0 && html`<div><dt>Weights</dt><dd>${bytes(model.weight_bytes)}</dd></div>`}
        ${model.cache_bytes > 0 && html`<div><dt>KV cache, at most</dt><dd>${bytes(model.cache_bytes)}</dd></div>`}
      </dl>
      ${operator && html`<${Operated} model=${model} />
        <${Actions} model=${model} refresh=${refresh} onGone=${onGone} />`}
    </article>`;
}

function Operated({ model }) {
  const { operator } = model;
  const name = visible(label(model));
  return html`
    <p class="path" title="Where the model came from"><bdi>${visible(operator.url)}</bdi></p>
    ${operator.failure &&
    html`<${Fault} title=${model.status === "FAILED" ? "It did not load." : "A worker did not load."} text=${operator.failure} />`}
    ${operator.reload_failure &&
    html`<${Fault} role="alert" title="The last reload changed nothing." text=${operator.reload_failure} />`}
    ${(operator.step || operator.doing in DOING) &&
    html`<div class="note"><strong>${DOING[operator.doing]}</strong> ${operator.step && html`<${Progress} of=${operator.step} />`}</div>`}
    <${Workers} workers=${operator.workers} title=${`Workers of ${name}`} />
    <${Workers} workers=${operator.successor} title="Workers that take over once all of them are ready" seen />
    ${operator.warnings.length > 0 &&
    html`<details>
      <summary>${operator.warnings.length === 1 ? "1 warning" : `${operator.warnings.length} warnings`}</summary>
      <ul class="warnings">${operator.warnings.map((text) => html`<li>${visible(text)}</li>`)}</ul>
    </details>`}`;
}

/** Of loading, the state and the workers tell. */
const DOING = { reloading: "Reloading…", scaling: "Scaling…" };

/** The sentence of the server's that says so again is left out. */
const Fault = ({ title, text, role }) => html`
  <div class="note bad" role=${role}>
    <strong>${title}</strong> <${Reason} text=${text} />
  </div>`;

/** How far something is, as words, and as a bar where it is counted. */
const Progress = ({ of: { what, done, total } }) => html`
  <span class="progress">
    <span>${visible(what)}${total > 0 && ` ${done}/${total}`}</span>
    ${total > 0 && html`<progress max=${total} value=${done} aria-label=${what}></progress>`}
  </span>`;

/** A table of workers. `seen`: its title is shown. */
function Workers({ workers, title, seen = false }) {
  if (workers.length === 0) return null;
  const now = Date.now() / 1000;
  return html`
    <div class="wide-table"><table class="workers">
      <caption class=${seen ? "" : "unseen"}>${title}</caption>
      <thead><tr><th scope="col">Worker</th><th scope="col">State</th><th scope="col">Device</th>
        <th scope="col">Up</th><th scope="col">Process</th></tr></thead>
      <tbody>
        ${workers.map(
          (one) => html`<tr key=${one.name} class=${one.progress || one.setback ? "more" : ""}>
            <th scope="row">${one.name}</th>
            <td><${Badge} state=${one.state} /></td>
            <td>${one.device}</td>
            <td>${one.pid && one.started_s ? span(now - one.started_s) : "–"}</td>
            <td>${one.pid ?? "–"}</td>
          </tr>
          ${(one.progress || one.setback) &&
          html`<tr key=${`${one.name} more`}><td></td><td colspan="4">
            ${one.progress && html`<${Progress} of=${one.progress} />`}
            ${one.setback && html`<div class="wrong">The worker before it: <${Reason} text=${one.setback} /></div>`}
          </td></tr>`}`,
        )}
      </tbody>
    </table></div>`;
}
