// The end of the server's log: what the front end, workers and engines log.
import { getJson, manage } from "./api.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { CopyButton, Field, Find, Failure, has, label, visible } from "./parts.js";
import { usePolling } from "./polling.js";

const EVERY_MS = 1000;
const KEPT = 1000;
const SERIOUS = ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"];
/** A record's level and name, in text and in JSON, where the name is that of a model, of a worker of it, or "-". */
const HEAD = new RegExp(`^\\S+Z (${SERIOUS.join("|")}) (\\S+) `, "m");
const WORKER = /\/\d+(\/.*)?$/;
const EVERY = "(every)";
const SERVER = "-";

/** A record with its level, and the label of the model that it is about; "-": none. */
export function read({ number, text }) {
  const [level, name] = headOf(text);
  return { number, text, level, about: name.replace(WORKER, "") };
}

function headOf(text) {
  const found = HEAD.exec(text);
  if (found) return found.slice(1);
  try {
    const { level, name } = JSON.parse(text.slice(text.indexOf("{")));
    return [String(level), String(name)];
  } catch {
    return ["INFO", SERVER]; // cut off, or of a form of its own
  }
}

/** The levels that can be chosen, with what is chosen by each. */
const CHOICES = SERIOUS.slice(0, 4).map((name) => [name.toLowerCase(), name === "DEBUG" ? "everything" : `${name.toLowerCase()} and above`]);

export function Log({ state }) {
  const [records, setRecords] = useState([]);
  const [logged, setLogged] = useState("");
  const [failure, setFailure] = useState(null);
  const [level, setLevel] = useState("DEBUG");
  const [model, setModel] = useState(EVERY);
  const [words, setWords] = useState("");
  const [follows, setFollows] = useState(true);
  const list = useRef(null);

  usePolling(async () => {
    try {
      const last = records.at(-1)?.number ?? 0;
      const { level: now, records: found } = await getJson(`/console/log?after=${last}`);
      const known = found.length > 0 && found[0].number <= last ? [] : records; // another server counts from 1 again
      if (found.length > 0) setRecords([...known, ...found.map(read)].slice(-KEPT));
      setLogged(now);
      setFailure(null);
    } catch (error) {
      setFailure(error);
    }
  }, EVERY_MS);

  const change = async (event) => {
    const to = event.target.value;
    try {
      await manage("POST", "/server/logging", { level: to });
      setLogged(to);
    } catch (error) {
      setFailure(error);
    }
  };

  const least = SERIOUS.indexOf(level);
  const shown = records.filter(
    (one) => SERIOUS.indexOf(one.level) >= least && (model === EVERY || one.about === model) && has(one.text, words),
  );
  // Those that have gone, too, as long as there is something of them.
  const models = new Set([...state.models.map(label), ...records.map(({ about }) => about), model]);
  for (const none of [EVERY, SERVER]) models.delete(none);
  useEffect(() => {
    if (follows) list.current.scrollTop = list.current.scrollHeight;
  }, [shown.length, records, follows]);

  return html`
    <h1>Log</h1>
    <form class="bar" onSubmit=${(event) => event.preventDefault()}>
      <${Field} label="The server logs">
        <select value=${logged} disabled=${!logged} onChange=${change}
          title="Holds until the server ends. Engines that run keep theirs until they are loaded again.">
          ${[...CHOICES, ["off", "nothing"]].map(([name, words]) => html`<option value=${name}>${words}</option>`)}
        </select>
      <//>
      <${Field} label="Shown here">
        <select value=${level} onChange=${(event) => setLevel(event.target.value)}>
          ${CHOICES.map(([name, words]) => html`<option value=${name.toUpperCase()}>${words}</option>`)}
        </select>
      <//>
      <${Field} label="Model">
        <select value=${model} onChange=${(event) => setModel(event.target.value)}>
          <option value=${EVERY}>all</option>
          <option value=${SERVER}>none: the server itself</option>
          ${[...models].sort().map((name) => html`<option value=${name}>${visible(name)}</option>`)}
        </select>
      <//>
      <${Find} words=${words} onChange=${setWords} />
      <label class="check">
        <input type="checkbox" checked=${follows} onChange=${(event) => setFollows(event.target.checked)} />
        follow
      </label>
      <${CopyButton} text=${shown.map(({ text }) => text).join("\n")} what="the records that are shown" />
    </form>
    <${Failure} of=${failure} />
    <div class="log" ref=${list} role="log" aria-live="off" aria-label="Records, oldest first" tabindex="0">
      ${shown.map(({ number, text, level }) => html`<div key=${number} class=${level.toLowerCase()}>${visible(text)}</div>`)}
    </div>
    ${shown.length === 0 && html`<p class="empty">${records.length > 0 ? "No record has that." : "Nothing has been logged yet."}</p>`}`;
}
