// What is asked of a model that reads texts and writes none: a form for each task, and its answer as a table.
import { predictPath, request } from "./api.js";
import { curl } from "./curl.js";
import { html, useLayoutEffect, useRef, useState } from "./html.js";
import { keep, kept } from "./kept.js";
import { Field, Problem, label, visible } from "./parts.js";
import { Snippets } from "./snippets.js";

const JSON_TYPE = "application/json";
const QUESTION = "What is deep learning?";
const SENTENCES = "Deep learning trains networks of many layers.\nThe cat sat on the mat.";
const PERSON = "Ada Lovelace lived in London.";

const lines = (text) => text.split("\n").filter((line) => line.trim());
/** Of two vectors. */
function cosine(one, other) {
  const dot = (left, right) => left.reduce((sum, value, at) => sum + value * right[at], 0);
  return dot(one, other) / Math.sqrt(dot(one, one) * dot(other, other));
}

const text = (name, title, value, { rows = 3, hint = "" } = {}) => ({ name, title, value, rows, hint });
const SEVERAL = { rows: 5, hint: "One a line" };
const labels = (found) => found.map((one) => [one.label, one.score]);

/** Embeddings are shown by what they are for: how similar texts are to the first one. */
const EMBED = {
  title: "Embed",
  fields: () => [text("texts", "Texts", `${QUESTION}\n${SENTENCES}`, SEVERAL)],
  body: ({ texts }) => ({ inputs: lines(texts) }),
  columns: ["Text", "Values", "Cosine with the first"],
  rows: (found, { texts }) => lines(texts).map((one, at) => [one, String(found[at].length), cosine(found[0], found[at])]),
};
/** Task -> its form: what it is called, its fields, and the body and the rows of the answer that they make. */
export const FORMS = {
  "feature-extraction": EMBED,
  "sentence-similarity": EMBED,
  "text-ranking": {
    title: "Rank",
    fields: () => [text("query", "Query", QUESTION), text("documents", "Documents", SENTENCES, SEVERAL)],
    body: ({ query, documents }) => ({ query, texts: lines(documents) }),
    columns: ["Document", "Score"],
    rows: (found, { documents }) => found.map(({ index, score }) => [lines(documents)[index], score]),
  },
  "text-classification": {
    title: "Classify",
    fields: () => [text("text", "Text", QUESTION)],
    body: ({ text }) => ({ inputs: text, parameters: { top_k: null } }),
    columns: ["Label", "Score"],
    rows: labels,
  },
  "zero-shot-classification": {
    title: "Classify",
    fields: () => [text("text", "Text", QUESTION), text("labels", "Labels", "science\ncooking", SEVERAL)],
    body: ({ text, labels }) => ({ inputs: text, parameters: { candidate_labels: lines(labels) } }),
    columns: ["Label", "Score"],
    rows: (found) => found.labels.map((one, at) => [one, found.scores[at]]),
  },
  "token-classification": {
    title: "Find entities",
    fields: () => [text("text", "Text", PERSON)],
    body: ({ text }) => ({ inputs: text, parameters: { aggregation_strategy: "simple" } }),
    columns: ["Text", "Entity", "Score"],
    rows: (found, { text }) =>
      found.map((one) => [[...text].slice(one.start, one.end).join(""), one.entity_group ?? one.entity, one.score]),
  },
  "question-answering": {
    title: "Find answers",
    fields: () => [text("question", "Question", "Who lived in London?"), text("context", "Context", PERSON, { rows: 6 })],
    body: ({ question, context }) => ({ inputs: { question, context }, parameters: { top_k: 3 } }),
    columns: ["Answer", "Score"],
    rows: (found) => found.map((one) => [one.answer, one.score]),
  },
  "fill-mask": {
    title: "Fill masks",
    fields: (example) => [text("text", "Text", example.inputs ?? "", { hint: "With the model's mask token" })],
    body: ({ text }) => ({ inputs: text }),
    columns: ["Text", "Token", "Score"],
    rows: (found) => found.flat().map((one) => [one.sequence, one.token_str, one.score]),
  },
};

/** One model's form, and its last answer. */
export function TextTask({ model }) {
  const form = FORMS[model.task];
  const fields = form.fields(model.example ? JSON.parse(model.example) : {});
  const name = `task ${label(model)}`;
  const [values, setValues] = useState(() => ({
    ...Object.fromEntries(fields.map((one) => [one.name, one.value])),
    ...kept(name),
  }));
  const [rows, setRows] = useState(null);
  const [problem, setProblem] = useState("");
  const [running, setRunning] = useState(false);
  const controller = useRef(null);
  useLayoutEffect(() => void keep(name, values), [values]);
  useLayoutEffect(() => () => controller.current?.abort(), []);
  const path = predictPath(model);
  const body = JSON.stringify(form.body(values));
  const submit = async (event) => {
    event.preventDefault();
    if (running) return;
    controller.current = new AbortController();
    setRows(null);
    setProblem("");
    setRunning(true);
    try {
      const headers = { "content-type": JSON_TYPE };
      const answer = await request(path, { method: "POST", headers, body, signal: controller.current.signal });
      setRows(form.rows(await answer.json(), values));
    } catch (error) {
      if (error.name !== "AbortError") setProblem(error.message);
    } finally {
      setRunning(false);
    }
  };
  return html`
    <div class="playground custom">
      <form class="card" aria-label=${form.title} onSubmit=${submit}>
        ${fields.map(
          (one) => html`<${Field} key=${one.name} label=${one.title} hint=${one.hint} wide>
            <textarea name=${one.name} rows=${one.rows} dir="auto" required value=${values[one.name]}
              onInput=${(event) => setValues({ ...values, [one.name]: event.target.value })}></textarea>
          <//>`,
        )}
        <div class="actions">
          ${running
            ? html`<button key="stop" type="button" onClick=${() => controller.current.abort()}>Stop</button>`
            : html`<button key="send" type="submit" class="primary">${form.title}</button>`}
          <code class="path">POST ${path}</code>
        </div>
      </form>
      <section class="answers" aria-label="Answer" aria-busy=${running}>
        <${Problem}>${problem}<//>
        ${rows && html`<${Rows} columns=${form.columns} rows=${rows} />`}
        ${!rows && !problem && html`<p class="empty">${running ? "Waiting for the answer…" : "The answer is shown here."}</p>`}
      </section>
    </div>
    <${Snippets} summary="The same request as curl" snippets=${[
      { title: "curl", text: curl(path, { type: JSON_TYPE, data: body }), remark: "" },
    ]} />`;
}

/** The last column is a number, and drawn where it is a share of one. */
const Rows = ({ columns, rows }) => html`
  <div class="card wide-table"><table class="scores">
    <caption class="unseen">The answer</caption>
    <thead><tr>${columns.map((one) => html`<th key=${one} scope="col">${one}</th>`)}</tr></thead>
    <tbody>
      ${rows.map(
        (row, at) => html`<tr key=${at}>
          ${row.slice(0, -1).map((one) => html`<td dir="auto">${visible(one)}</td>`)}
          <td>${row.at(-1) >= 0 && row.at(-1) <= 1.0001 && html`<meter min="0" max="1" value=${row.at(-1)}></meter>`}${row.at(-1).toFixed(4)}</td>
        </tr>`,
      )}
    </tbody>
  </table>${rows.length === 0 && html`<p class="empty">Nothing is found.</p>`}</div>`;
