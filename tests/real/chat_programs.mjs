// What users of JavaScript's clients of chats write; a program of their environment (`chat_clients`).
//
//     node chat_programs.mjs NAME URL
//
// prints what the client NAME (a row of `programs`) makes of the model "demo" at the server, as `chat_programs.py` does.

const QUESTION = "What is deep learning?";
const messages = [{ role: "user", content: QUESTION }];
const TOKENS = 12;
const WRONG = -1;
const schema = {
  type: "object",
  properties: { city: { type: "string", enum: ["Bern", "Rome"] } },
  required: ["city"],
  additionalProperties: false,
};

async function refusal(ask) {
  try {
    await ask();
  } catch (error) {
    return `${error.constructor.name}: ${error.message}`;
  }
  return "";
}

async function openai(url) {
  const { default: OpenAI } = await import("openai");
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
  const ask = (more) =>
    client.chat.completions.create({ model: "demo", messages, temperature: 0, max_tokens: TOKENS, ...more });
  let stream = "";
  for await (const chunk of await ask({ stream: true })) stream += chunk.choices[0]?.delta?.content ?? "";
  const tools = [{ type: "function", function: { name: "weather", parameters: schema } }];
  const called = await ask({ tools, tool_choice: "required", max_tokens: 200 });
  const format = { type: "json_schema", json_schema: { name: "place", schema, strict: true } };
  const structured = await ask({ response_format: format, max_tokens: 200 });
  return {
    answer: (await ask({})).choices[0].message.content,
    stream,
    tool: called.choices[0].message.tool_calls.map((call) => JSON.parse(call.function.arguments)),
    structured: JSON.parse(structured.choices[0].message.content),
    error: await refusal(() => ask({ temperature: WRONG })),
  };
}

async function anthropic(url) {
  const { default: Anthropic } = await import("@anthropic-ai/sdk");
  const client = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
  const request = { model: "demo", messages, temperature: 0, max_tokens: TOKENS };
  const ask = (more) => client.messages.create({ ...request, ...more });
  const stream = client.messages.stream(request);
  const tools = [{ name: "weather", input_schema: schema }];
  const called = await client.messages
    .stream({ ...request, max_tokens: 200, tools, tool_choice: { type: "any" } })
    .finalMessage();
  const format = { type: "json_schema", schema };
  const structured = await ask({ output_config: { format }, max_tokens: 200 });
  return {
    answer: (await ask({})).content[0].text,
    stream: await stream.finalText(),
    tool: called.content.filter((block) => block.type === "tool_use").map((block) => block.input),
    structured: JSON.parse(structured.content[0].text),
    error: await refusal(() => ask({ temperature: WRONG })),
  };
}

async function ollama(url) {
  const { Ollama } = await import("ollama");
  const client = new Ollama({ host: url });
  const ask = ({ options, ...more }) =>
    client.chat({ model: "demo", messages, options: { temperature: 0, num_predict: TOKENS, ...options }, ...more });
  let stream = "";
  for await (const piece of await ask({ stream: true })) stream += piece.message.content;
  const structured = await ask({ format: schema, options: { num_predict: 200 } });
  return {
    answer: (await ask({})).message.content,
    stream,
    structured: JSON.parse(structured.message.content),
    error: await refusal(() => ask({ options: { temperature: WRONG } })),
  };
}

// `limit` and `wrong` are the provider's ways of a limit and of a value that is refused.
async function ai(model, { limit = (tokens) => ({ maxOutputTokens: tokens }), wrong, choice = "required" }) {
  const { generateText, generateObject, streamText, tool, jsonSchema } = await import("ai");
  const request = { model, prompt: QUESTION, temperature: 0, maxRetries: 0, ...limit(TOKENS) };
  const weather = tool({ description: "The weather in a city.", inputSchema: jsonSchema(schema) });
  const found = {};
  if (choice) {
    const called = await generateText({
      ...request,
      ...limit(200),
      tools: { weather },
      toolChoice: choice,
    });
    found.tool = called.toolCalls.map((call) => call.input);
  }
  const structured = await generateObject({ ...request, ...limit(200), schema: jsonSchema(schema) });
  return {
    ...found,
    answer: (await generateText(request)).text,
    stream: await streamText(request).text,
    structured: structured.object,
    error: await refusal(() => generateText({ ...request, ...wrong })),
  };
}

async function ai_openai_compatible(url) {
  const { createOpenAICompatible } = await import("@ai-sdk/openai-compatible");
  const provider = createOpenAICompatible({
    name: "djl",
    baseURL: `${url}/v1`,
    apiKey: "none",
    supportsStructuredOutputs: true,
  });
  return ai(provider("demo"), { wrong: { temperature: WRONG } });
}

async function ai_anthropic(url) {
  const { createAnthropic } = await import("@ai-sdk/anthropic");
  const provider = createAnthropic({ baseURL: `${url}/v1`, apiKey: "none" });
  return ai(provider("demo"), { wrong: { topK: -5 } }); // it corrects temperatures itself
}

async function ai_ollama(url) {
  const { createOllama } = await import("ollama-ai-provider-v2");
  const options = (more) => ({ providerOptions: { ollama: { options: { temperature: 0, ...more } } } });
  return ai(createOllama({ baseURL: `${url}/api` })("demo"), {
    limit: (tokens) => options({ num_predict: tokens }),
    wrong: options({ temperature: WRONG }),
    choice: null, // Ollama's API can't force a call
  });
}

const programs = { openai, anthropic, ollama, ai_openai_compatible, ai_anthropic, ai_ollama };
const [name, url] = process.argv.slice(2);
console.log(JSON.stringify(await programs[name](url)));
