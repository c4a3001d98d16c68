// Requests to a model: which model, and what is asked of it, a chat, a completion, what its task is, or anything.
import { defaultsPath, getJson, predictPath } from "./api.js";
import { Custom } from "./custom.js";
import { html, useEffect, useLayoutEffect, useState } from "./html.js";
import { keep, kept } from "./kept.js";
import { Console, Failure, Field, STATES, label, visible } from "./parts.js";
import { Session } from "./session.js";
import { FORMS, TextTask } from "./texttask.js";

export function Playground({ state }) {
  if (!state.generates) {
    return html`<h1>Playground</h1>
      <p class="empty">Models answer at <${Console} at=${state.inference_address} />: the playground is in the console there.</p>`;
  }
  return state.models.length === 0
    ? html`<h1>Playground</h1><p class="empty">No model is loaded.</p>`
    : html`<${Ready} state=${state} />`;
}

const MODES = { chat: "Chat", completion: "Completion", request: "Request" };
/** What a model can be asked for: one that writes no text has a form for its task. */
const modesOf = ({ task }) => (task in FORMS ? { task: FORMS[task].title, request: MODES.request } : MODES);
const chats = ({ example }) => example.includes('"messages"');
/** Whether a handler of its own answers it: nothing is said of an engine, or of text that it goes on with. */
const isCustom = ({ status, engine, example }) => !engine && !chats({ example }) && status !== "PENDING";
const healthy = ({ status }) => status === "Healthy";

function Ready({ state }) {
  const [openapi, setOpenapi] = useState(null);
  const [failure, setFailure] = useState(null);
  const [chosen, setChosen] = useState(() => kept("model") ?? "");
  const [asked, setAsked] = useState(() => kept("modes") ?? {}); // of custom handlers, and of others
  useEffect(() => {
    getJson("/openapi.json").then((found) => (setOpenapi(found), setFailure(null)), setFailure);
  }, [failure && state]); // after a failure, again as soon as the server answers
  const [defaults, setDefaults] = useState({});
  const [unknown, setUnknown] = useState(null); // why they are
  useLayoutEffect(() => void (keep("model", chosen), keep("modes", asked)), [chosen, asked]);
  const { models } = state;
  const likely = models.find((one) => healthy(one) && chats(one)) ?? models.find(healthy) ?? models[0];
  const model = models.find((one) => label(one) === chosen) ?? likely;
  // What its handler says it answers: a chat where it has a template for one.
  const { registered_s: since, status } = model;
  useEffect(() => {
    let ended = false;
    const found = (values, error) => ended || (setDefaults(values), setUnknown(error));
    getJson(defaultsPath(model)).then((values) => found(values, null), (error) => found({}, error));
    return () => void (ended = true);
  }, [label(model), since, status, failure]); // one that is loaded under this name later may have others
  const modes = modesOf(model);
  const kind = modes.task ? "task" : isCustom(model) ? "custom" : "generates";
  const mode = asked[kind] ?? (modes.task ? "task" : chats(model) ? "chat" : isCustom(model) ? "request" : "completion");
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
        ${Object.entries(modes).map(
          ([one, words]) => html`<label key=${one}><input type="radio" name="mode" checked=${one === mode}
            onChange=${() => setAsked({ ...asked, [kind]: one })} /><span>${words}</span></label>`,
        )}
      </fieldset>
    </form>
    <${Failure} of=${failure ?? unknown} />
    <${Doubt} model=${model} models=${models} mode=${mode} />
    ${mode === "request" && html`<${Custom} key=${label(model)} model=${model} />`}
    ${mode === "task" && html`<${TextTask} key=${`${label(model)} ${model.task}`} model=${model} />`}
    ${openapi && mode in MODES && mode !== "request" && html`<${Session} key=${mode} state=${state} model=${model} mode=${mode} openapi=${openapi} defaults=${defaults[mode] ?? {}} />`}`;
}

/** Why the model may not answer. */
function Doubt({ model, models, mode }) {
  const name = visible(label(model));
  const last = models.findLast((one) => one.name === model.name);
  let doubt = "";
  if (model.status === "FAILED") doubt = `${name} did not load: it does not answer.`;
  else if (model.status === "PENDING") doubt = `${name} is loading: requests are answered when it has.`;
  else if (model.status === "Unloaded") doubt = `${name} is unloaded: the next request loads it, and waits meanwhile.`;
  else if (!model.version && last !== model)
    doubt = `Requests that name no version go to ${visible(label(last))}, which was registered last: that one answers here.`;
  else if (mode in MODES && mode !== "request" && !model.engine && !model.example)
    doubt = `${name} has a handler of its own, which may not take chats and completions. “Request” sends it anything, to ${predictPath(model)}.`;
  return doubt && html`<p class="note" role="note">${doubt}</p>`;
}
