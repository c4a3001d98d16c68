// Every setting of the server or of a model, and where its value comes from.
import { getJson } from "./api.js";
import { html, useEffect, useState } from "./html.js";
import { Field, Find, Failure, has, label, visible } from "./parts.js";

const SERVER = "(server)";

export function Settings({ state, rest }) {
  const [all, setAll] = useState(null);
  const [failure, setFailure] = useState(null);
  const [words, setWords] = useState("");
  const [every, setEvery] = useState(false);
  const known = state.models.map(label).join("\n"); // a model that came or was reloaded has other settings
  useEffect(() => {
    getJson("/console/settings").then((found) => (setAll(found), setFailure(null)), setFailure);
  }, [known, failure && state]); // after a failure, again as soon as the server answers

  const models = all?.models ?? [];
  const chosen = models.find((model) => label(model) === rest[0]);
  const choose = (event) => (location.hash = `settings/${encodeURIComponent(event.target.value)}`);
  const shown = (rows) =>
    rows.filter(
      ({ key, value, source }) =>
        (every || source !== "default") && has(`${key} ${value} ${source}`, words),
    );
  return html`
    <h1>Settings</h1>
    <form class="bar" onSubmit=${(event) => event.preventDefault()}>
      <${Field} label="Settings of">
        <select value=${chosen ? label(chosen) : SERVER} onChange=${choose}>
          <option value=${SERVER}>the server</option>
          ${models.map((model) => html`<option value=${label(model)}>${visible(label(model))}</option>`)}
        </select>
      <//>
      <${Find} words=${words} onChange=${setWords} />
      <label class="check">
        <input type="checkbox" checked=${every} onChange=${(event) => setEvery(event.target.checked)} />
        show defaults too
      </label>
    </form>
    <${Failure} of=${failure} />
    ${all &&
    html`<${Rows} rows=${shown(chosen ? chosen.settings : all.server)} title="Settings" />
      ${chosen && chosen.passed_on.length > 0 &&
      html`<h2>Passed to the handler</h2><${Rows} rows=${shown(chosen.passed_on)} title="Passed to the handler" />`}`}`;
}

function Rows({ rows, title }) {
  if (rows.length === 0) return html`<p class="empty" role="status">No setting differs from its default.</p>`;
  return html`
    <div class="card"><table class="settings">
      <caption class="unseen">${title}</caption>
      <thead><tr><th scope="col">Setting</th><th scope="col">Value</th><th scope="col">From</th></tr></thead>
      <tbody>
        ${rows.map(
          ({ key, value, source }) => html`<tr key=${key}>
            <th scope="row"><code><bdi>${visible(key)}</bdi></code></th>
            <td data-title="Value"><code><bdi>${visible(value)}</bdi></code></td>
            <td data-title="From" class=${source === "default" ? "muted" : ""}>${source}</td>
          </tr>`,
        )}
      </tbody>
    </table></div>`;
}
