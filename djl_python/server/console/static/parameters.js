// The parameters of a request as a form, made from the API's own description: every one that the server takes is there.
import { html } from "./html.js";
import { Field } from "./parts.js";

export const PATHS = { chat: "/v1/chat/completions", completion: "/v1/completions" };
/** What the playground has controls of its own for. */
const OWN = new Set([
  ...["model", "messages", "prompt", "stream", "stream_options"],
  ...["logprobs", "top_logprobs", "tools", "response_format"],
]);
const COMMON = ["max_tokens", "temperature", "top_p", "top_k", "n", "seed", "stop"];

/** The fields of a request, the common ones first: [{name, kind, help, schema, isText}]. */
export function fieldsOf(openapi, mode) {
  const body = openapi.paths[PATHS[mode]].post.requestBody.content["application/json"].schema;
  const { properties } = resolved(openapi, body)[0];
  const rank = ({ name }) => (COMMON.includes(name) ? COMMON.indexOf(name) : COMMON.length);
  return Object.entries(properties)
    .filter(([name]) => !OWN.has(name))
    .map(([name, schema]) => field(openapi, name, schema))
    .sort((one, other) => rank(one) - rank(other));
}

/** A schema's alternatives, without references and null. */
function resolved(openapi, schema) {
  if (schema.$ref) return resolved(openapi, openapi.components.schemas[schema.$ref.split("/").at(-1)]);
  if (schema.anyOf) return schema.anyOf.flatMap((one) => resolved(openapi, one));
  return schema.type === "null" ? [] : [schema];
}

function field(openapi, name, schema) {
  const found = resolved(openapi, schema);
  const types = new Set(found.map(({ type }) => type));
  const [first = {}] = found;
  const ofWords = found.some(({ type, items }) => type === "array" && items?.type === "string");
  let kind = "json";
  if (ofWords) kind = "lines";
  else if (types.size === 1 && ["integer", "number", "boolean"].includes(first.type)) kind = first.type;
  else if (types.size === 1 && first.type === "string") kind = "text";
  const help = found.map(({ description }) => description).filter(Boolean).join(" ");
  return { name, kind, help, schema: first, isText: types.has("string") || types.has(undefined), isCommon: COMMON.includes(name) };
}

/** The values that a form's texts stand for, and what is wrong with the others, by name. */
export function readValues(fields, texts) {
  const values = {};
  const problems = {};
  for (const one of fields) {
    const text = texts[one.name]?.trim() ?? "";
    if (text === "") continue;
    try {
      values[one.name] = valueOf(one, texts[one.name]);
    } catch (error) {
      problems[one.name] = error.message;
    }
  }
  return { values, problems };
}

function valueOf({ kind, isText }, text) {
  if (kind === "integer" || kind === "number") return numberOf(text);
  if (kind === "boolean") return text === "true";
  if (kind === "text") return text;
  if (kind === "lines") return text.split("\n").filter((line) => line !== "");
  try {
    return JSON.parse(text);
  } catch (error) {
    if (isText) return text;
    throw new Error(`expected JSON: ${error.message}`);
  }
}

function numberOf(text) {
  const value = Number(text);
  if (Number.isNaN(value)) throw new Error("expected a number");
  return value;
}

/** `defaults`: by name, what the model's requests have without a value. */
export function Parameters({ fields, texts, problems, defaults, onChange }) {
  const control = (one) => html`
    <${Control} key=${one.name} one=${one} byItself=${defaults[one.name]} text=${texts[one.name] ?? ""} problem=${problems[one.name]}
      onInput=${(event) => onChange({ ...texts, [one.name]: event.target.value })} />`;
  const others = fields.filter(({ isCommon }) => !isCommon);
  const set = others.filter(({ name }) => texts[name]).length;
  return html`
    <div class="fields">${fields.filter(({ isCommon }) => isCommon).map(control)}</div>
    <details>
      <summary>${others.length} more parameters${set > 0 ? `, ${set} set` : ""}</summary>
      <div class="fields">${others.map(control)}</div>
    </details>`;
}

function Control({ one, byItself, text, problem, onInput }) {
  const { name, kind, help, schema, isText } = one;
  const hint = problem ? html`<span class="wrong" role="alert">${problem}</span>` : help || rangeOf(schema);
  const shared = { name, value: text, onInput, "aria-invalid": problem ? "true" : undefined };
  const placeholder = byItself === undefined ? undefined : String(byItself);
  let control = html`<input type="text" ...${shared} placeholder=${placeholder} spellcheck=${false} />`;
  if (kind === "boolean") {
    control = html`<select ...${shared}>
      <option value="">${placeholder === undefined ? "unset" : `unset: ${placeholder}`}</option><option value="true">true</option><option value="false">false</option>
    </select>`;
  } else if (kind === "integer" || kind === "number") {
    const { minimum, maximum } = schema;
    control = html`<input type="number" ...${shared} placeholder=${placeholder} min=${minimum} max=${maximum}
      step=${kind === "integer" ? 1 : "any"} inputmode="decimal" />`;
  } else if (kind === "lines" || kind === "json") {
    const form = { lines: "one a line", json: isText ? "text or JSON" : "JSON" }[kind];
    control = html`<textarea rows="2" ...${shared} placeholder=${placeholder ?? form} spellcheck=${false}></textarea>`;
  }
  return html`<${Field} label=${name} hint=${hint}>${control}<//>`;
}

function rangeOf({ minimum, exclusiveMinimum, maximum }) {
  const least = minimum ?? exclusiveMinimum;
  if (least === undefined && maximum === undefined) return "";
  if (maximum === undefined) return exclusiveMinimum === undefined ? `At least ${least}.` : `More than ${least}.`;
  return `${least} to ${maximum}.`;
}
