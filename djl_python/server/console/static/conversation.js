// What has been said in the playground, and where one goes on.
import { Choice } from "./answer.js";
import { html } from "./html.js";
import { Field } from "./parts.js";

export function Entry({ entry, shows }) {
  if (entry.made) return html`<${Made} answer=${entry.made} shows=${shows} />`;
  return html`
    <article class=${`entry ${entry.role}`}>
      <h2 class="who">${entry.role === "tool" ? `Result of ${entry.name}` : "You"}</h2>
      ${entry.text && html`<p class="text" dir="auto">${entry.text}</p>`}
      ${(entry.images ?? []).map(({ url, name }) => html`<img class="thumb" src=${url} alt=${name} />`)}
    </article>`;
}

export function Made({ answer, shows }) {
  const several = answer.choices.length > 1;
  return html`
    <article class="entry assistant">
      <h2 class="who"><bdi>${answer.by}</bdi></h2>
      ${answer.choices.map(
        (choice, at) => html`<${Choice} key=${at} choice=${choice} number=${several ? at + 1 : null} shows=${shows} />`,
      )}
      ${answer.choices.length === 0 && html`<p class="muted">…</p>`}
      ${answer.stopped && html`<p class="muted">Stopped</p>`}
      <p class="muted timing">${answer.timing}</p>
    </article>`;
}

export function Composer({ mode, model, form, change, images, setImages, running, wrong, onSend, onStop, onAgain, onClear }) {
  const submit = (event) => {
    event.preventDefault();
    if (!running) onSend();
  };
  const onKeyDown = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing && mode === "chat") submit(event);
  };
  const attach = async (event) => {
    const files = [...event.target.files];
    event.target.value = "";
    setImages([...images, ...(await Promise.all(files.map(asImage)))]);
  };
  const title = mode === "chat" ? "Message" : "Prompt";
  return html`
    <form class=${`composer ${mode}`} onSubmit=${submit}>
      <${Field} label=${title} wide hint=${mode === "chat" ? "Enter sends, Shift+Enter begins a line." : ""}>
        <textarea name="prompt" dir="auto" rows=${mode === "chat" ? 2 : 6} value=${form.prompt} onKeyDown=${onKeyDown}
          onInput=${(event) => change({ prompt: event.target.value })}></textarea>
      <//>
      ${images.length > 0 &&
      html`<div class="actions">
        ${images.map(({ url, name }, at) => html`
          <span class="attached"><img class="thumb" src=${url} alt=${name} />
            <button type="button" class="quiet small" aria-label=${`Remove ${name}`}
              onClick=${() => setImages(images.filter((_, other) => other !== at))}>Remove</button></span>`)}
      </div>`}
      ${wrong.length > 0 && html`<p class="wrong">Not sent as long as this is wrong: ${wrong.join(", ")}.</p>`}
      <div class="actions">
        ${running
          ? html`<button key="stop" type="button" onClick=${onStop}>Stop</button>`
          : html`<button key="send" type="submit" class="primary" disabled=${wrong.length > 0}>${mode === "chat" ? "Send" : "Complete"}</button>`}
        ${onAgain && html`<button type="button" class="quiet" disabled=${wrong.length > 0} onClick=${onAgain}>Ask again</button>`}
        ${mode === "chat" && model.takes_images &&
        html`<label class="button quiet">Add images
          <input class="unseen" type="file" accept="image/*" multiple onChange=${attach} /></label>`}
        ${onClear && html`<button type="button" class="quiet" onClick=${onClear}>New chat</button>`}
      </div>
    </form>`;
}

const asImage = (file) =>
  new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve({ name: file.name, url: reader.result });
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });

/** What the tools that the model called have given: the user's to say. */
export function ToolResults({ calls, onSend }) {
  const send = (event) => {
    event.preventDefault();
    const given = new FormData(event.target);
    onSend(calls.map(({ id, name }, at) => ({ role: "tool", id, name, text: given.get(String(at)) })));
  };
  return html`
    <form class="card" onSubmit=${send} aria-label="Results of tools">
      ${calls.map(({ name }, at) => html`<${Field} label=${`Result of ${name}`} wide><textarea name=${at} rows="2"></textarea><//>`)}
      <div class="actions"><button type="submit" class="primary">Send results</button></div>
    </form>`;
}
