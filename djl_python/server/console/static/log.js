// The end of the server's log: what the front end, workers and engines log.
import { getJson, manage } from "./api.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { CopyButton, Field, Find, Failure, has, visible } from "./parts.js";
import { usePolling } from "./polling.js";

const EVERY_MS = 1000;
const KEPT = 1000;
const LEVEL = /\b(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b/;
const SERIOUS = ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"];

const levelOf = (text) => LEVEL.exec(text)?.[1] ?? "INFO";
/** The levels that can be chosen, with what is chosen by each. */
const CHOICES = SERIOUS.slice(0, 4).map((name) => [name.toLowerCase(), name === "DEBUG" ? "everything" : `${name.toLowerCase()} and above`]);

export function Log() {
  const [records, setRecords] = useState([]);
  const [logged, setLogged] = useState("");
  const [failure, setFailure] = useState(null);
  const [level, setLevel] = useState("DEBUG");
  const [words, setWords] = useState("");
  const [follows, setFollows] = useState(true);
  const list = useRef(null);

  usePolling(async () => {
    try {
      const last = records.at(-1)?.number ?? 0;
      const { level: now, records: found } = await getJson(`/console/log?after=${last}`);
      const known = found.length > 0 && found[0].number <= last ? [] : records; // another server counts from 1 again
      if (found.length > 0) setRecords([...known, ...found].slice(-KEPT));
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
    ({ text }) => SERIOUS.indexOf(levelOf(text)) >= least && has(text, words),
  );
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
      <${Find} words=${words} onChange=${setWords} />
      <label class="check">
        <input type="checkbox" checked=${follows} onChange=${(event) => setFollows(event.target.checked)} />
        follow
      </label>
      <${CopyButton} text=${shown.map(({ text }) => text).join("\n")} what="the records that are shown" />
    </form>
    <${Failure} of=${failure} />
    <div class="log" ref=${list} role="log" aria-live="off" aria-label="Records, oldest first" tabindex="0">
      ${shown.map(({ number, text }) => html`<div key=${number} class=${levelOf(text).toLowerCase()}>${visible(text)}</div>`)}
    </div>
    ${shown.length === 0 && html`<p class="empty">${records.length > 0 ? "No record has that." : "Nothing has been logged yet."}</p>`}`;
}
