// Small parts that several pages show.
import { cloneElement, html, useEffect, useId, useRef, useState } from "./html.js";

const KINDS = { Healthy: "good", ready: "good", PENDING: "busy", starting: "busy", Unloaded: "busy", Unhealthy: "warn",
  unresponsive: "warn" };
/** States of models, in words. */
export const STATES = { Healthy: "healthy", PENDING: "loading", Unhealthy: "unhealthy", FAILED: "failed",
  Unloaded: "unloaded" };

/** A state in a word, with a colour and a mark of its own. */
export const Badge = ({ state }) =>
  html`<span class=${`badge ${KINDS[state] ?? "bad"}`}>${STATES[state] ?? state}</span>`;

/** An error's message: its first line, and what follows it, such as a traceback, for whoever asks. */
export function Reason({ text }) {
  const [first, ...more] = visible(text).trim().split("\n");
  return html`<span>${first}</span>
    ${more.length > 0 && html`<details><summary>All of it</summary><pre tabindex="0">${more.join("\n")}</pre></details>`}`;
}

/** An error that is read out at once; nothing while there is none. */
export const Problem = ({ children }) =>
  children ? html`<div class="note bad" role="alert"><${Reason} text=${children} /></div>` : null;

/** What is being done, then how it went. */
export const Outcome = ({ doing, done, problem }) => html`
  <p class="status" role="status">${doing ? `${doing}…` : done}</p>
  <${Problem}>${problem}<//>`;

/** An error of a request, but for one that the page reports itself: the server does not answer at all. */
export const Failure = ({ of: error }) => html`<${Problem}>${error?.status ? error.message : ""}<//>`;

const EVERY_ADDRESS = ["0.0.0.0", "[::]"];

/** A link to the console at another address of the server's. */
export function Console({ at }) {
  if (!URL.canParse(at)) return at; // a Unix socket
  const url = new URL("/console", at);
  if (EVERY_ADDRESS.includes(url.hostname)) url.hostname = location.hostname; // it listens at each that it has
  return html`<a href=${url.href}>${url.origin}</a>`;
}

/** A control with its label, and a `hint` that is read as its description. */
export function Field({ label, hint, wide, children }) {
  const id = useId();
  return html`
    <div class=${wide ? "field wide" : "field"}>
      <label class="label" for=${id}>${words(label)}</label>
      ${cloneElement(children, { id, "aria-describedby": hint ? `${id}-hint` : undefined })}
      ${hint && html`<span class="hint" id=${`${id}-hint`}>${hint}</span>`}
    </div>`;
}

/** A name of several words may be broken between them. */
const words = (name) => name.split(/(?<=_)/).map((word, at) => (at === 0 ? word : html`<wbr />${word}`));

/** Words to look for. */
export const Find = ({ words, onChange }) => html`
  <${Field} label="Find">
    <input type="search" value=${words} onInput=${(event) => onChange(event.target.value)} />
  <//>`;

export const has = (text, words) => text.toLowerCase().includes(words.toLowerCase());

/** A button that copies a text, and says that it has. */
export function CopyButton({ text, what }) {
  const [done, setDone] = useState("");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setDone("Copied");
    } catch {
      setDone("Not permitted: select and copy"); // browsers have no clipboard for plain HTTP from elsewhere
    }
    setTimeout(() => setDone(""), 3000);
  };
  return html`<button type="button" class="quiet small" aria-label=${`Copy ${what}`} onClick=${copy}>
    <span aria-live="polite">${done || "Copy"}</span>
  </button>`;
}

/** A question before something that can't be undone; it has the focus until it is answered. */
export function Confirm({ question, detail, action, onYes, onNo }) {
  const dialog = useRef(null);
  useEffect(() => dialog.current.showModal(), []);
  return html`
    <dialog ref=${dialog} onClose=${onNo} aria-labelledby="question" aria-describedby="question-detail">
      <h2 id="question">${question}</h2>
      <p id="question-detail">${detail}</p>
      <div class="actions">
        <button type="button" class="danger" onClick=${onYes}>${action}</button>
        <button type="button" class="quiet" autofocus onClick=${() => dialog.current.close()}>Cancel</button>
      </div>
    </dialog>`;
}

const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

/** A span of seconds in its largest unit: "3 h". */
export function span(seconds) {
  const [size, unit] = UNITS.find(([size]) => seconds >= size) ?? UNITS.at(-1);
  return `${Math.max(0, Math.floor(seconds / size))} ${unit}`;
}

const SIZES = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]];

/** A number of bytes in its largest unit: "1.5 GiB". */
export function bytes(count) {
  if (count == null) return "–";
  const [size, unit] = SIZES.find(([size]) => count >= size) ?? SIZES.at(-1);
  return `${short(count / size)} ${unit}`;
}

/** A number with about three digits. */
export function short(value) {
  if (value == null || !Number.isFinite(value)) return "–";
  if (Math.abs(value) >= 100 || Number.isInteger(value)) return Math.round(value).toLocaleString("en");
  return value.toPrecision(value >= 1 ? 3 : 2);
}

const UNSEEN = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;

/** A text from elsewhere, with what would be invisible, or turn what is around it, as an escape: "\u202e". */
export const visible = (text) =>
  text.replace(UNSEEN, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);

export const label = ({ name, version }) => (version ? `${name}:${version}` : name);
