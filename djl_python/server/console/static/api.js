// Requests to the server that this page came from, with the key that it asks for, and its errors in one form.
import { keyHeaders } from "./key.js";

/** The server's root, also where a proxy has put it below a path. */
export const ROOT = new URL("..", import.meta.url).href;

/** What the server answered where it did not do what it was asked for. `status` is 0 where it did not answer. */
export class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Each API has its own shape of errors: find the sentence in it. */
function sentence(text, status) {
  try {
    const body = JSON.parse(text);
    const found = body.message ?? body.error?.message ?? body.error ?? body.detail;
    if (typeof found === "string") return found;
  } catch {
    // not JSON: the text itself is what there is
  }
  return text.trim().slice(0, 2000) || `The server answered ${status} without saying why.`;
}

/** fetch() below ROOT, whatever the answer's status; throws a ServerError where there is no answer. */
export async function send(path, options = {}) {
  try {
    const headers = { ...options.headers, ...keyHeaders() };
    return await fetch(new URL(path.replace(/^\//, ""), ROOT), { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(0, "The server does not answer.");
  }
}

/** The same; throws a ServerError for every answer that is not a success, too. */
export async function request(path, options = {}) {
  const answer = await send(path, options);
  if (!answer.ok) throw new ServerError(answer.status, sentence(await answer.text(), answer.status));
  return answer;
}

export const getJson = async (path) => (await request(path)).json();

/** A request of the management API: parameters go into the query, those that are empty are left out. */
export async function manage(method, path, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== "" && value != null);
  const query = new URLSearchParams(given.map(([name, value]) => [name, String(value)]));
  return (await request(`${path}?${query}`, { method })).json();
}

const below = (path) => ({ name, version }) =>
  `${path}/${encodeURIComponent(name)}${version ? `/${encodeURIComponent(version)}` : ""}`;
/** The path of a model in the management API; where it takes requests of any form; what requests have by default. */
export const modelPath = below("/models");
export const predictPath = below("/predictions");
export const defaultsPath = below("/console/defaults");
