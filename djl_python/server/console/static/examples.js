// The API's description as its page needs it: examples that are answered as they are offered.

/** Tags of APIs whose bodies name no model: the query does. */
const BY_QUERY = ["lmi", "tgi"];
/** What would be done to a model whose name stands there already. */
const ENDS = /\/unload$/;

/** `openapi` with the names of models of /console/state; it is changed. */
export function withModels(openapi, { models, several }) {
  const model = likely(models);
  if (!model) return openapi;
  for (const [path, operations] of Object.entries(openapi.paths)) {
    for (const [method, operation] of Object.entries(operations)) {
      if (method !== "delete" && !ENDS.test(path)) nameIn(openapi, path, operation, models, model, several);
    }
  }
  return openapi;
}

/** A model that answers chats, else text, else anything. */
function likely(models) {
  const ready = models.filter(({ status }) => status === "Healthy");
  return ready.find(({ example }) => example.includes('"messages"')) ?? ready.find(({ engine }) => engine) ?? ready[0];
}

function nameIn(openapi, path, operation, models, model, several) {
  const parameters = (operation.parameters ??= []);
  const placed = parameters.some(({ name }) => name === "version") ? models.find(({ version }) => version) : model;
  for (const parameter of placed ? parameters : []) {
    if (parameter.in === "path" && ["model", "version"].includes(parameter.name)) {
      parameter.example = parameter.name === "model" ? placed.name : placed.version;
    }
  }
  const content = operation.requestBody?.content["application/json"];
  if (!content?.example) return;
  const isLmi = operation.tags.includes("lmi");
  // A handler of another task has an example of its own.
  if (isLmi && placed && !placed.engine && placed.example) content.example = JSON.parse(placed.example);
  if (!several || path.includes("{model}")) return;
  if (operation.tags.some((tag) => BY_QUERY.includes(tag))) parameters.push(inQuery(model));
  else if (propertiesOf(openapi, content.schema).has("model")) content.example = { model: model.name, ...content.example };
}

const inQuery = ({ name }) => ({
  name: "model_name",
  in: "query",
  description: "Which of the models that are loaded.",
  schema: { type: "string" },
  example: name,
});

const schemaOf = (openapi, schema) =>
  schema.$ref ? openapi.components.schemas[schema.$ref.split("/").at(-1)] : schema;

/** The names that an object may have, of any of a schema's alternatives. */
function propertiesOf(openapi, schema) {
  const { properties = {}, anyOf = [] } = schemaOf(openapi, schema);
  return new Set([...Object.keys(properties), ...anyOf.flatMap((one) => [...propertiesOf(openapi, one)])]);
}
