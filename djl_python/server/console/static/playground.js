// Chats and completions with a model: which model, and what is asked of it.
import { getJson } from "./api.js";
import { html, useEffect, useState } from "./html.js";
import { PATHS } from "./parameters.js";
import { Console, Failure, Field, STATES, label, visible } from "./parts.js";
import { Session } from "./session.js";

export function Playground({ state }) {
  if (!state.generates) {
    return html`<h1>Playground</h1>
      <p class="empty">Models answer at <${Console} at=${state.inference_address} />: the playground is in the console there.</p>`;
  }
  return state.models.length === 0
    ? html`<h1>Playground</h1><p class="empty">No model is loaded.</p>`
    : html`<${Ready} state=${state} />`;
}

const chats = ({ example }) => example.includes('"messages"');
const healthy = ({ status }) => status === "Healthy";

function Ready({ state }) {
  const [openapi, setOpenapi] = useState(null);
  const [failure, setFailure] = useState(null);
  const [chosen, setChosen] = useState("");
  const [asked, setAsked] = useState("");
  useEffect(() => {
    getJson("/openapi.json").then((found) => (setOpenapi(found), setFailure(null)), setFailure);
  }, [failure && state]); // after a failure, again as soon as the server answers
  const { models } = state;
  const likely = models.find((one) => healthy(one) && chats(one)) ?? models.find(healthy) ?? models[0];
  const model = models.find((one) => label(one) === chosen) ?? likely;
  // What its handler says it answers: a chat where it has a template for one.
  const mode = asked || (chats(model) ? "chat" : "completion");
  return html`
    <h1>Playground</h1>
    <form class="bar" onSubmit=${(event) => event.preventDefault()}>
      <${Field} label="Model">
        <select value=${label(model)} onChange=${(event) => setChosen(event.target.value)}>
          ${models.map((one) => html`<option value=${label(one)}>${visible(label(one))}${!healthy(one) && ` (${STATES[one.status]})`}</option>`)}
        </select>
      <//>
      <fieldset class="choose">
        <legend class="unseen">What to ask for</legend>
        ${Object.keys(PATHS).map(
          (one) => html`<label key=${one}><input type="radio" name="mode" checked=${one === mode}
            onChange=${() => setAsked(one)} /><span>${one === "chat" ? "Chat" : "Completion"}</span></label>`,
        )}
      </fieldset>
    </form>
    <${Failure} of=${failure} />
    <${Doubt} model=${model} models=${models} />
    ${openapi && html`<${Session} key=${mode} state=${state} model=${model} mode=${mode} openapi=${openapi} />`}`;
}

/** Why the model may not answer. */
function Doubt({ model, models }) {
  const name = visible(label(model));
  const last = models.findLast((one) => one.name === model.name);
  let doubt = "";
  if (model.status === "FAILED") doubt = `${name} did not load: it does not answer.`;
  else if (model.status === "PENDING") doubt = `${name} is loading: requests are answered when it has.`;
  else if (!model.version && last !== model)
    doubt = `Requests that name no version go to ${visible(label(last))}, which was registered last: that one answers here.`;
  else if (!model.engine && !model.example)
    doubt = `${name} has a handler of its own, which may not take chats and completions. What it takes, it answers at /predictions/${name}.`;
  return doubt && html`<p class="note" role="note">${doubt}</p>`;
}
