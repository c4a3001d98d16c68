// What can be done with a model through the management API.
import { manage, modelPath } from "./api.js";
import { html, useState } from "./html.js";
import { Confirm, Outcome, label, visible } from "./parts.js";

/** What is being done, and how it went: `act` does it, and says whether it was done. */
export function useAction(refresh) {
  const [doing, setDoing] = useState("");
  const [problem, setProblem] = useState("");
  const [done, setDone] = useState("");
  const act = async (what, work) => {
    setDoing(what);
    setProblem("");
    setDone("");
    let status = "";
    let failure = "";
    try {
      ({ status } = await work());
    } catch (error) {
      failure = error.message;
    }
    await refresh(); // what is said of it and what the card shows of the model change together
    setDoing("");
    setDone(status);
    setProblem(failure);
    return !failure;
  };
  return { doing, problem, done, act };
}

/** `onGone` is told of a model that is no longer there, and neither is its card. */
export function Actions({ model, refresh, onGone }) {
  const { doing, problem, done, act } = useAction(refresh);
  const [stopping, setStopping] = useState(false);
  const name = visible(label(model));
  const failed = model.status === "FAILED";
  const busy = !!(doing || model.operator.doing);
  const reload = () =>
    act("Reloading", () =>
      manage("POST", "/models", { model_name: model.name, model_version: model.version, reload: true }),
    );
  const stop = async () => {
    setStopping(false);
    onGone(`${name} is being stopped…`);
    const gone = await act("Stopping", () => manage("DELETE", modelPath(model), unversioned(model)));
    onGone(gone ? `${name} is stopped.` : "");
    if (gone) document.getElementById("main").focus(); // the button that had it is gone
  };
  const word = failed ? "Remove" : "Stop";
  return html`
    <div class="actions">
      <button type="button" disabled=${busy} aria-label=${`Reload ${name}`} onClick=${reload}>Reload</button>
      <button type="button" class="danger" disabled=${doing === "Stopping"} aria-label=${`${word} ${name}`}
        onClick=${() => setStopping(true)}>${word}</button>
      <a class="button quiet" href=${`#settings/${encodeURIComponent(label(model))}`} aria-label=${`Settings of ${name}`}>
        Settings
      </a>
      ${model.status !== "PENDING" && !failed && html`<${Scale} model=${model} busy=${busy} act=${act} />`}
    </div>
    <${Outcome} doing=${model.operator.doing ? "" : doing} done=${done} problem=${model.operator.reload_failure ? "" : problem} />
    ${stopping &&
    html`<${Confirm} question=${`${word} ${name}?`} action=${word} onYes=${stop} onNo=${() => setStopping(false)}
      detail=${failed ? "The server will no longer know it." : "Its requests are answered first. After that the server no longer knows the model."} />`}`;
}

/** Without a version, the path of a model means all of its versions. */
const unversioned = ({ version }) => (version ? {} : { unversioned: true });

function Scale({ model, busy, act }) {
  const { operator } = model;
  const [edited, setEdited] = useState({});
  const { least = operator.min_workers, most = operator.max_workers } = edited;
  const scale = async (event) => {
    event.preventDefault();
    const bounds = { min_worker: least, max_worker: most, ...unversioned(model) };
    if (await act("Scaling", () => manage("PUT", modelPath(model), bounds))) setEdited({});
  };
  const bound = (name, words, value) => html`
    <label>${words} <input type="number" min="1" required aria-label=${`Workers, ${words}`} value=${value}
      onInput=${(event) => setEdited({ ...edited, [name]: event.target.value })} /></label>`;
  return html`
    <form class="scale" onSubmit=${scale} aria-label=${`Scale ${visible(label(model))}`}>
      <span>Workers</span> ${bound("least", "at least", least)} ${bound("most", "at most", most)}
      <button type="submit" disabled=${busy}>Scale</button>
    </form>`;
}
