// An answer of any content type: read as it arrives, and shown as what it is.
import { send } from "./api.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { pretty } from "./json.js";
import { bytes, short, visible } from "./parts.js";

/** Of a text that is shown; all of it can be saved. */
const MOST_CHARACTERS = 200_000;
const TEXTS = /^text\/|json|jsonlines|ndjson|xml|yaml|javascript|urlencoded/;
/** Endings of file names where they are not the second part of the type. */
const ENDINGS = { "text/plain": "txt", "text/event-stream": "txt", "image/svg+xml": "svg", "image/jpeg": "jpg",
  "application/octet-stream": "bin", "application/jsonlines": "jsonl", "application/x-ndjson": "jsonl" };

export const isText = (type) => type === "" || TEXTS.test(type);
const isJson = (type) => /^application\/([\w.-]+\+)?json$/.test(type);

/** One request at a time, and what there is of its answer. */
export function useResult() {
  const [result, setResult] = useState(null);
  const [problem, setProblem] = useState("");
  const [running, setRunning] = useState(false);
  const controller = useRef(null);
  useEffect(() => () => controller.current?.abort(), []);
  const ask = async (path, options) => {
    controller.current = new AbortController();
    setResult(null);
    setProblem("");
    setRunning(true);
    try {
      await read(path, { ...options, signal: controller.current.signal }, setResult);
    } catch (error) {
      if (error.name === "AbortError") setResult((before) => before && { ...before, stopped: true });
      else setProblem(error.message);
    } finally {
      setRunning(false);
    }
  };
  return { result, problem, running, ask, stop: () => controller.current?.abort() };
}

/** Send a request, and call `show` with what there is of its answer, at most once for each frame. */
async function read(path, options, show) {
  const askedMs = performance.now();
  const answer = await send(path, options);
  const said = answer.headers.get("content-type") ?? "";
  const type = said.split(";")[0].trim().toLowerCase();
  const result = {
    ...{ type, status: answer.status, reason: answer.statusText, headers: [...answer.headers] },
    ...{ firstMs: performance.now() - askedMs, totalMs: 0, size: 0, text: "", blob: null, ended: false, stopped: false },
    fileName: `answer.${endingOf(type)}`,
  };
  const pieces = [];
  const decoder = decoderOf(said);
  let drawn = 0;
  const draw = () => (drawn ||= requestAnimationFrame(() => ((drawn = 0), show({ ...result }))));
  const reader = answer.body?.getReader();
  try {
    for (;;) {
      const { value, done } = (await reader?.read()) ?? { done: true };
      if (done) break;
      pieces.push(value);
      result.size += value.length;
      result.totalMs = performance.now() - askedMs;
      if (isText(type) && result.text.length <= MOST_CHARACTERS) result.text += decoder.decode(value, { stream: true });
      draw();
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The connection broke off before the answer had ended.");
  }
  cancelAnimationFrame(drawn);
  result.totalMs = performance.now() - askedMs;
  result.blob = new Blob(pieces, { type });
  show({ ...result, ended: true });
}

const endingOf = (type) => ENDINGS[type] ?? (isJson(type) ? "json" : (/^[\w-]+\/(\w+)$/.exec(type)?.[1] ?? "bin"));

/** For the character set that a content type names; UTF-8 where it names none that the browser knows. */
function decoderOf(type) {
  try {
    return new TextDecoder(/charset="?([\w:.-]+)/i.exec(type)?.[1]);
  } catch {
    return new TextDecoder();
  }
}

export function Result({ result, running }) {
  const { status, reason, type, size, firstMs, totalMs, headers, fileName, blob } = result;
  const url = useObjectUrl(blob);
  const times = totalMs - firstMs > 50 ? `${spent(totalMs)}, first byte after ${spent(firstMs)}` : spent(totalMs || firstMs);
  return html`
    <article class="card result" aria-busy=${running}>
      <div class="card-head">
        <p role="status"><span class=${`badge ${status < 400 ? "good" : "bad"}`}>${status} ${visible(reason)}</span></p>
        ${url && size > 0 && html`<a class="button quiet small" href=${url} download=${fileName}>Save as ${fileName}</a>`}
      </div>
      <p class="muted timing">${times}, ${bytes(size)}${type && html`, <code>${visible(type)}</code>`}</p>
      <${Content} result=${result} url=${url} />
      <details>
        <summary>Headers</summary>
        <div class="wide-table"><table class="headers">
          <caption class="unseen">Headers of the answer</caption>
          <tbody>${headers.map(([name, value]) => html`<tr key=${name}><th scope="row"><code>${name}</code></th><td><code>${visible(value)}</code></td></tr>`)}</tbody>
        </table></div>
      </details>
    </article>`;
}

function Content({ result, url }) {
  const { type, size, text, ended, stopped } = result;
  const [broken, setBroken] = useState(false);
  useEffect(() => setBroken(false), [url]);
  if (size === 0) return ended ? html`<p class="muted">The answer is empty.</p>` : null;
  if (isText(type)) {
    const whole = ended && text.length <= MOST_CHARACTERS;
    const shown = whole && isJson(type) ? pretty(text) : text.slice(0, MOST_CHARACTERS);
    return html`<pre tabindex="0" dir="auto" aria-label="Body of the answer"><code>${visible(shown)}</code></pre>
      ${stopped && html`<p class="muted">Stopped</p>`}
      ${text.length > MOST_CHARACTERS && html`<p class="muted">This is its beginning: saved, it is there as a whole.</p>`}`;
  }
  if (url && type.startsWith("image/") && !broken) {
    return html`<img class="answered" src=${url} alt="The answer" onError=${() => setBroken(true)} />`;
  }
  if (!url) return html`<p class="muted">${stopped ? "Stopped" : "…"}</p>`;
  return html`<p class="muted">${broken ? "The browser can't show this as an image." : "This can be saved as a file."}</p>`;
}

const spent = (ms) => (ms < 10_000 ? `${Math.round(ms)} ms` : `${short(ms / 1000)} s`);

/** An address of the blob in this page. */
function useObjectUrl(blob) {
  const [url, setUrl] = useState("");
  useEffect(() => {
    if (!blob) return setUrl("");
    const made = URL.createObjectURL(blob);
    setUrl(made);
    return () => URL.revokeObjectURL(made);
  }, [blob]);
  return url;
}
