// The API reference: Swagger UI over the server's own /openapi.json. The console's key is sent where no other is given.
import { getJson } from "./api.js";
import { withModels } from "./examples.js";
import { keyHeaders } from "./key.js";

const GIVEN = ["authorization", "x-api-key", "api-key"];
const DOCUMENT = new URL("../openapi.json", import.meta.url).href;

function withKey(request) {
  if (new URL(request.url, location).origin !== location.origin) return request;
  const names = Object.keys(request.headers ?? {}).map((name) => name.toLowerCase());
  if (!names.some((name) => GIVEN.includes(name))) request.headers = { ...request.headers, ...keyHeaders() };
  return request;
}

/** The document as it arrives, with examples that name the models that are there, for whoever may see them. */
async function withExamples(response) {
  if (response.url !== DOCUMENT || !response.ok) return response;
  const state = await getJson("/console/state").catch(() => null);
  if (state) response.text = response.data = JSON.stringify(withModels(JSON.parse(response.text), state));
  return response;
}

const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", follow);
follow();

SwaggerUIBundle({
  url: DOCUMENT,
  domNode: document.getElementById("api"),
  deepLinking: true,
  docExpansion: "none",
  defaultModelsExpandDepth: 0,
  tryItOutEnabled: true,
  requestInterceptor: withKey,
  responseInterceptor: withExamples,
  validatorUrl: null, // else it asks another server
});
