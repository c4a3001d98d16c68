// Requests to the server that this page came from, and its errors in one form.

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

/** fetch() below ROOT; throws a ServerError for every answer that is not a success. */
export async function request(path, options = {}) {
  let answer;
  try {
    answer = await fetch(new URL(path.replace(/^\//, ""), ROOT), options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(0, "The server does not answer.");
  }
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

/** The path of a model in the management API. */
export const modelPath = ({ name, version }) =>
  `/models/${encodeURIComponent(name)}${version ? `/${encodeURIComponent(version)}` : ""}`;
