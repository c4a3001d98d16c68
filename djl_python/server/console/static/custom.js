// A request of any form to a model, for handlers that take something else than chats and completions.
import { predictPath } from "./api.js";
import { curl } from "./curl.js";
import { html, useLayoutEffect, useState } from "./html.js";
import { keep, kept } from "./kept.js";
import { Field, Problem, bytes, label } from "./parts.js";
import { Result, isText, useResult } from "./result.js";
import { Snippets } from "./snippets.js";

const BODIES = { text: "JSON or text", file: "File" };
const JSON_TYPE = "application/json";
const FORM_TYPE = "multipart/form-data";
/** The part of a form that has the file: what DJL's clients call it. */
const PART = "data";
const TYPES = {
  text: [JSON_TYPE, "text/plain", "application/x-www-form-urlencoded", "application/jsonlines"],
  file: ["image/png", "image/jpeg", "audio/wav", "tensor/npz", "tensor/ndlist", "application/octet-stream", FORM_TYPE],
};
const ACCEPTED = [JSON_TYPE, "text/plain", "image/png", "tensor/npz", "application/octet-stream"];

/** One model's form, and its last answer. */
export function Custom({ model }) {
  const name = `request ${label(model)}`;
  const [form, setForm] = useState(() => ({ body: "text", text: model.example, type: "", accept: "", ...kept(name) }));
  const [file, setFile] = useState(null);
  const { result, problem, running, ask, stop } = useResult();
  const change = (more) => setForm((before) => ({ ...before, ...more }));
  useLayoutEffect(() => void keep(name, form), [form]); // the file can't be kept

  const { body, text, accept } = form;
  const byItself = body === "text" ? JSON_TYPE : file?.type || "application/octet-stream";
  const type = form.type.trim() || byItself;
  const isForm = body === "file" && type.startsWith(FORM_TYPE);
  const path = predictPath(model);
  const headers = { ...(isForm ? {} : { "content-type": type }), ...(accept.trim() ? { accept: accept.trim() } : {}) };
  const submit = (event) => {
    event.preventDefault();
    if (running) return;
    const content = isForm ? new FormData() : body === "file" ? file : text;
    if (isForm) content.append(PART, file);
    ask(path, { method: "POST", headers, body: content });
  };
  const command = curl(path, {
    type,
    accept: accept.trim(),
    part: isForm ? PART : "",
    output: result?.ended && !isText(result.type) ? result.fileName : "",
    ...(body === "file" ? { file: file?.name ?? "FILE" } : { data: text }),
  });
  const fault = body === "text" && type === JSON_TYPE ? faultOf(text) : "";
  const field = (title, name, placeholder, suggestions, hint) => html`
    <${Suggested} title=${title} value=${form[name]} placeholder=${placeholder} suggestions=${suggestions} hint=${hint}
      onInput=${(value) => change({ [name]: value })} />`;
  return html`
    <div class="playground custom">
      <form class="card" aria-label="Request" onSubmit=${submit}>
        <fieldset class="choose">
          <legend class="unseen">What is sent</legend>
          ${Object.entries(BODIES).map(
            ([one, words]) => html`<label key=${one}><input type="radio" name="body" checked=${one === body}
              onChange=${() => change({ body: one, type: "" })} /><span>${words}</span></label>`,
          )}
        </fieldset>
        ${body === "text"
          ? html`<${Field} key="text" label="Body" wide hint=${fault && html`<span class="wrong">${fault}</span>`}>
              <textarea name="text" rows="8" dir="auto" spellcheck=${false} value=${text}
                onInput=${(event) => change({ text: event.target.value })}></textarea>
            <//>`
          : html`<${Field} key="file" label="Upload" wide
              hint=${file ? `${bytes(file.size)}, ${file.type || "of no known type"}` : "Of any type"}>
              <input type="file" name="file" onChange=${(event) => setFile(event.target.files[0] ?? null)} />
            <//>`}
        <div class="fields">
          ${field("Content-Type", "type", byItself, TYPES[body], isForm ? `The file is the part “${PART}” of a form.` : "Of what is sent")}
          ${field("Accept", "accept", "*/*", ACCEPTED, "Of the answer")}
        </div>
        <div class="actions">
          ${running
            ? html`<button key="stop" type="button" onClick=${stop}>Stop</button>`
            : html`<button key="send" type="submit" class="primary" disabled=${body === "file" && !file}>Send</button>`}
          <code class="path">POST ${path}</code>
        </div>
      </form>
      <section class="answers" aria-label="Answer">
        <${Problem}>${problem}<//>
        ${result
          ? html`<${Result} result=${result} running=${running} />`
          : !problem && html`<p class="empty">${running ? "Waiting for the answer…" : "The answer is shown here."}</p>`}
      </section>
    </div>
    <${Snippets} summary="The same request as curl" snippets=${[{ title: "curl", text: command, remark: "" }]} />`;
}

/** What is wrong with a text as JSON. It may be sent all the same, to see how its handler answers. */
function faultOf(text) {
  try {
    JSON.parse(text);
    return "";
  } catch (error) {
    return `Not valid JSON, and sent as it is: ${error.message}`;
  }
}

/** A field for any text, with some to choose from; empty, it means its placeholder. */
const Suggested = ({ title, value, placeholder, suggestions, hint, onInput }) => {
  const list = `${title} suggestions`.replaceAll(" ", "-");
  return html`
    <${Field} label=${title} hint=${hint}>
      <input type="text" name=${title} list=${list} value=${value} placeholder=${placeholder} autocomplete="off"
        autocapitalize="off" spellcheck=${false} onInput=${(event) => onInput(event.target.value)} />
    <//>
    <datalist id=${list}>${suggestions.map((one) => html`<option value=${one}></option>`)}</datalist>`;
};
