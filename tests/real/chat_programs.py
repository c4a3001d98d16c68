"""What users of Python's clients of chats write; a program of their environment (`chat_clients`).

    python chat_programs.py NAME URL

prints what the client NAME (a row of `PROGRAMS`) makes of the model "demo" at the server, as JSON: a plain answer and
the same answer streamed, the arguments of a tool's call, an answer by a schema, and the message of an error.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal

QUESTION: Final = "What is deep learning?"
MESSAGES: Final[Any] = [{"role": "user", "content": QUESTION}]
TOKENS: Final = 12
CITIES: Final = ("Bern", "Rome")
SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": [*CITIES]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: Final[Any] = {
    "type": "function",
    "function": {"name": "weather", "description": "The weather in a city.", "parameters": SCHEMA},
}
#: No API takes such a temperature.
WRONG: Final = -1.0
Found = dict[str, Any]


def refusal(ask: Callable[[], Any]) -> str:
    """The message of the exception that a client raises."""
    try:
        ask()
    except Exception as exc:  # each client has its own
        return f"{type(exc).__name__}: {exc}"
    return ""


def joined(pieces: Iterable[str | None]) -> str:
    return "".join(piece or "" for piece in pieces)


def _litellm(model: str, **where: Any) -> Found:
    import litellm

    litellm.telemetry = False
    litellm.num_retries = 0

    def ask(**more: Any) -> Any:
        given: dict[str, Any] = {"max_tokens": TOKENS, "temperature": 0.0, "messages": MESSAGES, **where, **more}
        return litellm.completion(model=model, **given)

    answer = ask().choices[0].message.content
    stream = joined(chunk.choices[0].delta.content for chunk in ask(stream=True))
    called = ask(tools=[WEATHER], tool_choice="required", max_tokens=200).choices[0].message.tool_calls
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA, "strict": True}}
    structured = ask(response_format=form, max_tokens=200).choices[0].message
    return {
        "answer": answer,
        "stream": stream,
        "tool": [json.loads(call.function.arguments) for call in called or []],
        "structured": json.loads(structured.content),
        "error": refusal(lambda: ask(temperature=WRONG)),
    }


def litellm_openai(url: str) -> Found:
    """LiteLLM, with OpenAI's API."""
    return _litellm("openai/demo", api_base=f"{url}/v1", api_key="none")


def litellm_anthropic(url: str) -> Found:
    """LiteLLM, with Anthropic's API."""
    return _litellm("anthropic/demo", api_base=url, api_key="none")


def litellm_ollama(url: str) -> Found:
    """LiteLLM, with Ollama's API."""
    return _litellm("ollama_chat/demo", api_base=url)


def _langchain(make: Callable[..., Any], choice: str | None, method: str) -> Found:
    from langchain_core.tools import tool

    @tool  # type: ignore[untyped-decorator]
    def weather(city: Literal["Bern", "Rome"]) -> str:
        """The weather in a city."""
        return city

    model, longer = make(TOKENS, 0.0), make(200, 0.0)
    bound = longer.bind_tools([weather], **({} if choice is None else {"tool_choice": choice}))
    return {
        "answer": model.invoke(QUESTION).content,
        "stream": joined(chunk.content for chunk in model.stream(QUESTION)),
        "tool": [call["args"] for call in bound.invoke(QUESTION).tool_calls],
        "structured": longer.with_structured_output({"title": "place", **SCHEMA}, method=method).invoke(QUESTION),
        "error": refusal(lambda: make(TOKENS, WRONG).invoke(QUESTION)),
    }


def langchain_openai(url: str) -> Found:
    """langchain's model of OpenAI's chats."""
    from langchain_openai import ChatOpenAI

    def make(tokens: int, temperature: float) -> Any:
        where: dict[str, Any] = {"base_url": f"{url}/v1", "api_key": "none", "max_retries": 0}
        return ChatOpenAI(model="demo", max_completion_tokens=tokens, temperature=temperature, **where)

    return _langchain(make, "required", "json_schema")


def langchain_ollama(url: str) -> Found:
    """langchain's model of Ollama's chats, which can't be told to call a tool."""
    from langchain_ollama import ChatOllama

    def make(tokens: int, temperature: float) -> Any:
        return ChatOllama(model="demo", base_url=url, num_predict=tokens, temperature=temperature)

    return _langchain(make, None, "json_schema")


def instructor(url: str) -> Found:
    """Instructor over OpenAI's client: a schema by a call, and by a format of the answer."""
    import instructor as library
    from openai import OpenAI
    from pydantic import BaseModel

    class Place(BaseModel):
        """A place."""

        city: Literal["Bern", "Rome"]

    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)

    def ask(mode: Any, temperature: float = 0.0) -> Any:
        made = library.from_openai(client, mode=mode)
        return made.chat.completions.create(
            model="demo",
            response_model=Place,
            max_retries=1,
            messages=MESSAGES,
            temperature=temperature,
            max_tokens=200,
        ).model_dump()

    return {
        "tool": [ask(library.Mode.TOOLS)],
        "structured": ask(library.Mode.JSON_SCHEMA),
        "error": refusal(lambda: ask(library.Mode.TOOLS, WRONG)),
    }


def _pydantic_ai(model: Any) -> Found:
    from pydantic import BaseModel
    from pydantic_ai import Agent, NativeOutput, ToolOutput

    class Place(BaseModel):
        """A place."""

        city: Literal["Bern", "Rome"]

    def settings(tokens: int, temperature: float = 0.0) -> Any:
        return {"max_tokens": tokens, "temperature": temperature}

    plain = Agent(model)

    async def streamed() -> str:
        async with plain.run_stream(QUESTION, model_settings=settings(TOKENS)) as result:
            return joined([piece async for piece in result.stream_text(delta=True, debounce_by=None)])

    def by(output: Any) -> Any:
        return Agent(model, output_type=output).run_sync(QUESTION, model_settings=settings(200)).output.model_dump()

    return {
        "answer": plain.run_sync(QUESTION, model_settings=settings(TOKENS)).output,
        "stream": asyncio.run(streamed()),
        "tool": [by(ToolOutput(Place, name="weather"))],
        "structured": by(NativeOutput(Place)),
        "error": refusal(lambda: plain.run_sync(QUESTION, model_settings=settings(TOKENS, WRONG))),
    }


def pydantic_ai_openai(url: str) -> Found:
    """Pydantic AI, with OpenAI's chats."""
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    return _pydantic_ai(OpenAIChatModel("demo", provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none")))


def _openai_agents(url: str, api: str) -> Found:
    """OpenAI's agents.

    Args:
        api: the name of the class of their models.
    """
    import agents
    from openai import AsyncOpenAI
    from pydantic import BaseModel

    class Place(BaseModel):
        """A place."""

        city: Literal["Bern", "Rome"]

    called: list[dict[str, str]] = []

    @agents.function_tool  # type: ignore[untyped-decorator]
    def weather(city: Literal["Bern", "Rome"]) -> str:
        """The weather in a city."""
        called.append({"city": city})
        return "sunny"

    agents.set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    model = getattr(agents, api)("demo", client)

    def agent(tokens: int, temperature: float = 0.0, choice: str | None = None, **more: Any) -> Any:
        settings = agents.ModelSettings(max_tokens=tokens, temperature=temperature, tool_choice=choice)
        return agents.Agent(name="a", model=model, model_settings=settings, **more)

    async def streamed() -> str:
        result = agents.Runner.run_streamed(agent(TOKENS), QUESTION)
        events = [event async for event in result.stream_events() if event.type == "raw_response_event"]
        return joined(event.data.delta for event in events if event.data.type == "response.output_text.delta")

    async def all_of_it() -> Found:
        async def run(made: Any) -> Any:
            return (await agents.Runner.run(made, QUESTION)).final_output

        answers: Found = {}
        if api != "OpenAIResponsesModel":  # which raises when a response is cut at its limit, as OpenAI's would be
            answers = {"answer": await run(agent(TOKENS)), "stream": await streamed()}
        calling = agent(200, choice="required", tools=[weather], tool_use_behavior="stop_on_first_tool")
        assert await run(calling) == "sunny"
        answers |= {"tool": called, "structured": (await run(agent(200, output_type=Place))).model_dump()}
        try:
            await run(agent(TOKENS, WRONG))
        except Exception as exc:  # OpenAI's client's
            answers["error"] = f"{type(exc).__name__}: {exc}"
        return answers

    return asyncio.run(all_of_it())


def openai_agents(url: str) -> Found:
    """OpenAI's agents, with chats."""
    return _openai_agents(url, "OpenAIChatCompletionsModel")


def openai_agents_responses(url: str) -> Found:
    """OpenAI's agents, with responses."""
    return _openai_agents(url, "OpenAIResponsesModel")


PROGRAMS: Final[dict[str, Callable[[str], Found]]] = {
    program.__name__: program
    for program in (
        *(litellm_openai, litellm_anthropic, litellm_ollama, langchain_openai, langchain_ollama),
        *(instructor, pydantic_ai_openai, openai_agents, openai_agents_responses),
    )
}

if __name__ == "__main__":
    name, url = sys.argv[1:]
    print(json.dumps(PROGRAMS[name](url)))
