// What the playground's form says, as the body of a request to OpenAI's routes.

/** The form's tools and schema as values, and what is wrong with them. */
export function jsonOf({ tools, schema }) {
  const values = {};
  const problems = {};
  for (const [name, text] of Object.entries({ tools, schema })) {
    if (text.trim() === "") continue;
    try {
      values[name] = JSON.parse(text);
    } catch (error) {
      problems[name] = `expected JSON: ${error.message}`;
    }
  }
  return { values, problems };
}

/** `said`: the entries of the chat so far. A completion has only the form's prompt. */
export function bodyOf(mode, model, form, values, said) {
  const { tools, schema } = jsonOf(form).values;
  return {
    model: model.name,
    ...(mode === "chat" ? { messages: messagesOf(form.system, said) } : { prompt: form.prompt }),
    ...values,
    ...(mode === "chat" && tools ? { tools } : {}),
    ...(schema ? { response_format: { type: "json_schema", json_schema: { name: "answer", schema } } } : {}),
    ...logprobsOf(mode, form),
    ...(form.stream ? { stream: true, stream_options: { include_usage: true } } : {}),
  };
}

function logprobsOf(mode, { showsTokens, alternatives }) {
  if (!showsTokens) return {};
  return mode === "chat" ? { logprobs: true, top_logprobs: alternatives } : { logprobs: alternatives };
}

function messagesOf(system, said) {
  const messages = said.map(messageOf);
  return system.trim() === "" ? messages : [{ role: "system", content: system }, ...messages];
}

function messageOf({ role, text, images = [], calls = [], id }) {
  if (role === "tool") return { role, tool_call_id: id, content: text };
  if (role === "assistant" && calls.length > 0) {
    const called = calls.map((call) => ({
      id: call.id,
      type: "function",
      function: { name: call.name, arguments: call.arguments },
    }));
    return { role, content: text || null, tool_calls: called };
  }
  if (images.length === 0) return { role, content: text };
  const parts = images.map(({ url }) => ({ type: "image_url", image_url: { url } }));
  return { role, content: [...(text ? [{ type: "text", text }] : []), ...parts] };
}
