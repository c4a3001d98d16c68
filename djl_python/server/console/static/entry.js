// Asks for the key without which the server answers nothing.
import { html, useState } from "./html.js";
import { storeKey, storedKey } from "./key.js";
import { Field, Problem } from "./parts.js";

/** `onKey` is called when a key has been given. */
export function KeyForm({ problem, onKey }) {
  const [key, setKey] = useState("");
  const give = (event) => {
    event.preventDefault();
    storeKey(key.trim());
    setKey("");
    onKey();
  };
  return html`
    <form class="card entry-form" onSubmit=${give} aria-label="API key">
      <h1>API key</h1>
      <${Field} label="Key" hint="It is kept until this tab is closed. A key with the scope manage may change models." wide>
        <input type="password" name="key" autocomplete="off" spellcheck=${false} required autofocus value=${key}
          onInput=${(event) => setKey(event.target.value)} />
      <//>
      <${Problem}>${storedKey() ? problem : ""}<//>
      <div class="actions"><button type="submit">Continue</button></div>
    </form>`;
}
