// The frame of the page: navigation by the part of the address behind #, the server's state, and one of the views.
import { getJson } from "./api.js";
import { Charts } from "./charts.js";
import { KeyForm } from "./entry.js";
import { html, render, useEffect, useRef, useState } from "./html.js";
import { forgetKept } from "./kept.js";
import { storeKey, storedKey } from "./key.js";
import { Log } from "./log.js";
import { Models } from "./models.js";
import { Console, Problem } from "./parts.js";
import { Playground } from "./playground.js";
import { usePolling } from "./polling.js";
import { Settings } from "./settings.js";

const STATE_EVERY_MS = 2000;
/** While a model loads. */
const PROGRESS_EVERY_MS = 500;
const VIEWS = [
  { id: "models", title: "Models", view: Models },
  { id: "charts", title: "Charts", view: Charts },
  { id: "playground", title: "Playground", view: Playground, stays: true },
  { id: "log", title: "Log", view: Log, operator: true },
  { id: "settings", title: "Settings", view: Settings, operator: true },
];

/** A part of an address; as it is, where somebody has written what can't be decoded. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** What the address names: the view, and what of it. */
function useAddress() {
  const read = () => location.hash.slice(1).split("/").map(decoded);
  const [parts, setParts] = useState(read);
  useEffect(() => {
    const onChange = () => setParts(read());
    addEventListener("hashchange", onChange);
    return () => removeEventListener("hashchange", onChange);
  }, []);
  return parts;
}

function Navigation({ views, current, onLeave }) {
  const nav = useRef(null);
  useEffect(() => {
    // On a phone, the line of links is longer than the screen.
    const link = nav.current.querySelector("[aria-current]");
    nav.current.scrollLeft = link.offsetLeft + link.offsetWidth / 2 - nav.current.clientWidth / 2;
  }, [current]);
  return html`
    <nav aria-label="Views" ref=${nav}>
      ${views.map(
        ({ id, title }) =>
          html`<a key=${id} href=${`#${id}`} onClick=${onLeave} aria-current=${id === current ? "page" : undefined}>${title}</a>`,
      )}
      <a href="docs" class="outward">API</a>
    </nav>`;
}

function Restricted({ state }) {
  if (state.manages) return null;
  if (state.key_name && !state.managed_at) {
    return html`<p class="note" role="note">Read-only: the key ${state.key_name} has no scope manage.</p>`;
  }
  const where = state.managed_at ? html`at <${Console} at=${state.managed_at} />` : "from the server’s own machine";
  return html`<p class="note" role="note">Read-only: models are managed ${where}.</p>`;
}

function App() {
  const [state, setState] = useState(null);
  const [problem, setProblem] = useState("");
  const [locked, setLocked] = useState(false); // until a key is given that the server takes
  const [named, ...rest] = useAddress();
  const main = useRef(null);

  const ask = async () => {
    try {
      const found = await getJson("/console/state");
      setState(found);
      setProblem("");
      setLocked(false);
      return found;
    } catch (error) {
      if (error.status === 401 || (error.status === 403 && !state)) {
        setState(null);
        setLocked(true);
      }
      const stale = error.status === 0 && state ? " What is shown is as it was before. It is asked again every two seconds." : "";
      setProblem(error.message + stale);
    }
  };
  const refresh = async () => (locked ? undefined : ask());
  const forget = () => {
    storeKey("");
    forgetKept();
    ask();
  };
  const loads = state?.models.some(({ status, operator }) => status === "PENDING" || operator?.doing);
  usePolling(refresh, loads && !problem ? PROGRESS_EVERY_MS : STATE_EVERY_MS);

  const visited = useRef(new Map()); // views, and how far down they were scrolled
  const views = VIEWS.filter(({ operator }) => !operator || state?.manages);
  const current = views.find(({ id }) => id === named) ?? views[0];
  const { id, title } = current;
  if (!visited.current.has(id)) visited.current.set(id, 0);
  // Behind the current view stay those that would lose what was done in them.
  const behind = views.filter((view) => view.stays && view !== current && visited.current.has(view.id));
  useEffect(() => {
    document.title = `${title} · djl-serving`;
    scrollTo(0, current.stays ? visited.current.get(id) : 0);
    if (named) main.current?.focus({ preventScroll: true });
  }, [id]);

  return html`
    <a class="skip" href="#main" onClick=${(event) => (event.preventDefault(), main.current.focus())}>
      Skip to the content
    </a>
    <header>
      <a class="brand" href="#models">
        <img src="console/favicon.svg" alt="" width="26" height="26" />
        <span>djl-serving</span>
      </a>
      <${Navigation} views=${views} current=${id} onLeave=${() => visited.current.set(id, scrollY)} />
      ${storedKey() && !locked && html`<button type="button" class="quiet small" onClick=${forget}>Forget the key</button>`}
      <span class="version">${state?.version}</span>
    </header>
    <main id="main" ref=${main} tabindex="-1">
      ${locked ? html`<${KeyForm} problem=${problem} onKey=${ask} />` : html`<${Problem}>${problem}<//>`}
      ${state === null
        ? !locked && html`<p class="empty" role="status">Loading…</p>`
        : html`<${Restricted} state=${state} />
            ${[current, ...behind].map(
              ({ id, view: View }) => html`<div key=${id} class="view" hidden=${id !== current.id}>
                <${View} state=${state} refresh=${refresh} rest=${rest} />
              </div>`,
            )}`}
    </main>`;
}

render(html`<${App} />`, document.getElementById("app"));
