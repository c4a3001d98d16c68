// What of a request is no single value: streaming, tokens, tools and a schema.
import { html } from "./html.js";
import { Field } from "./parts.js";

const TOOLS_EXAMPLE = '[{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", …}}}]';

export function Options({ mode, form, change, problems }) {
  const checked = (name) => (event) => change({ [name]: event.target.checked });
  const json = (name, title, placeholder) => {
    const hint = problems[name] && html`<span class="wrong" role="alert">${problems[name]}</span>`;
    return html`<${Field} label=${title} hint=${hint} wide>
      <textarea name=${name} rows="3" spellcheck=${false} placeholder=${placeholder} value=${form[name]}
        onInput=${(event) => change({ [name]: event.target.value })}></textarea>
    <//>`;
  };
  return html`
    <div class="checks">
      <label class="check"><input type="checkbox" name="stream" checked=${form.stream} onChange=${checked("stream")} /> stream</label>
      ${mode === "chat" &&
      html`<label class="check"><input type="checkbox" name="markdown" checked=${form.markdown} onChange=${checked("markdown")} />
        Markdown</label>`}
      <label class="check"><input type="checkbox" name="tokens" checked=${form.showsTokens} onChange=${checked("showsTokens")} />
        tokens and alternatives</label>
      ${form.showsTokens &&
      html`<label class="check">how many <input type="number" min="0" max="20" value=${form.alternatives}
        onInput=${(event) => change({ alternatives: Number(event.target.value) })} /></label>`}
    </div>
    <details>
      <summary>${mode === "chat" ? "Tools and JSON schema" : "JSON schema"}</summary>
      ${mode === "chat" && json("tools", "Tools, as OpenAI has them", TOOLS_EXAMPLE)}
      ${json("schema", "JSON schema of the answer", '{"type": "object", "properties": {…}}')}
    </details>`;
}
