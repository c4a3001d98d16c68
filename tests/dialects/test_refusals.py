"""Whatever is wrong with a field, in any dialect: it is refused as what it is, with the field's path."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

from djl_python.core.errors import ParameterError, PayloadError
from djl_python.dialects import dialect
from tests.dialects.exchange import inputs, model

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
SAMPLED = {"temperature": 1.5, "top_k": 3, "top_p": 0.5, "repetition_penalty": 1.1, "frequency_penalty": 1, "seed": 1}
FURTHER = SAMPLED | {"min_p": 0.1, "typical_p": 0.5, "presence_penalty": 1}
SHARED = FURTHER | {
    "model": "m",
    "max_tokens": 5,
    "n": 2,
    "stop": ["a"],
    "logit_bias": {"5": 1},
    "stream": True,
    "stream_options": {"include_usage": True},
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
    "min_tokens": 1,
    "ignore_eos": True,
    "stop_token_ids": [1],
    "bad_words": ["b"],
    "include_stop_str_in_output": True,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "truncate_prompt_tokens": 3,
}
CHAT: dict[str, Any] = SHARED | {
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "s"}], "name": "n"},
        {"role": "user", "content": [{"type": "text", "text": "t"}]},
        {
            "role": "assistant",
            "content": "c",
            "reasoning_content": "r",
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "content": "x", "tool_call_id": "1"},
        {"role": "user", "content": "hi"},
    ],
    "max_completion_tokens": 5,
    "logprobs": True,
    "top_logprobs": 2,
    "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "parallel_tool_calls": True,
    "modalities": ["text"],
    "reasoning_effort": "low",
    "thinking_budget": 5,
    "thinking": {"type": "enabled", "budget_tokens": 5},
    "guideline": "g",
    "tool_prompt": "p",
    "add_generation_prompt": True,
    "continue_final_message": False,
    "chat_template_kwargs": {"a": 1},
}
LMI: dict[str, Any] = {
    "inputs": "a",
    "stream": False,
    "parameters": FURTHER
    | {
        **dict.fromkeys(("details", "return_full_text", "decoder_input_details", "ignore_eos", "do_sample"), True),
        **dict.fromkeys(("include_stop_str_in_output", "skip_special_tokens", "early_stopping"), True),
        **dict.fromkeys(("n", "num_beams", "length_penalty", "logprobs", "prompt_logprobs", "top_n_tokens"), 1),
        "output_formatter": "json",
        "max_new_tokens": 5,
        "min_new_tokens": 1,
        "truncate": 3,
        "best_of": 2,
        "stop_sequences": ["a"],
        "stop_token_ids": [1],
        "bad_sequences": ["b"],
    },
}
TGI = {
    "inputs": "a",
    "stream": False,
    "parameters": SAMPLED
    | {
        **dict.fromkeys(("decoder_input_details", "details", "do_sample", "return_full_text", "watermark"), True),
        "grammar": {"type": "json", "value": SCHEMA},
        "best_of": 1,
        "top_n_tokens": 1,
        "max_new_tokens": 5,
        "stop": ["a"],
        "truncate": 3,
        "typical_p": 0.5,
    },
}
MINDIE = {
    "inputs": [{"type": "text", "text": "a"}],
    "parameters": {
        **{name: value for name, value in SAMPLED.items() if name != "frequency_penalty"},
        **dict.fromkeys(("details", "do_sample", "return_full_text", "watermark"), True),
        "decoder_input_details": False,
        "max_new_tokens": 5,
        "truncate": 1,
        "typical_p": 0.5,
        "stop": ["a"],
        "adapter_id": "None",
    },
}
GENERATE = {
    "text_input": "a",
    "id": "1",
    "parameters": {"max_tokens": 5, "min_tokens": 1, **SAMPLED, "stream": True, "do_sample": True},
    "stop": ["a"],
    "bad_words": ["b"],
    "skip_special_tokens": True,
}
ANTHROPIC = {
    "model": "served",
    "max_tokens": 5,
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "b"}]},
    ],
    "system": [{"type": "text", "text": "a"}],
    "tools": [{"name": "f", "description": "a", "input_schema": {"type": "object", "properties": {"a": {}}}}],
    "tool_choice": {"type": "tool", "name": "f"},
    "temperature": 0.5,
    "top_k": 3,
    "top_p": 0.5,
    "stop_sequences": ["a"],
    "thinking": {"type": "enabled", "budget_tokens": 4},
    "stream": True,
}
RESPONSES: dict[str, Any] = {
    "model": "served",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "message", "role": "user", "content": "a"},
        {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "a"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "a"}]},
    ],
    "instructions": "a",
    "max_output_tokens": 5,
    "temperature": 0.5,
    "top_p": 0.5,
    "top_logprobs": 2,
    "include": ["message.output_text.logprobs"],
    "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}, "verbosity": "low"},
    "reasoning": {"effort": "low", "summary": "auto"},
    "tools": [{"type": "function", "name": "f", "description": "a", "parameters": SCHEMA, "strict": True}],
    "tool_choice": {"type": "function", "name": "f"},
    "parallel_tool_calls": True,
    "truncation": "auto",
    "metadata": {"a": "b"},
    "user": "a",
    "safety_identifier": "a",
    "stream": True,
    "stream_options": {"include_obfuscation": False},
    "top_k": 3,
    "min_p": 0.1,
    "seed": 1,
    "stop": ["a"],
    "presence_penalty": 1,
    "frequency_penalty": 1,
    "repetition_penalty": 1.1,
    "chat_template_kwargs": {"a": 1},
}
OLLAMA: dict[str, Any] = {
    "model": "served",
    "stream": True,
    "format": SCHEMA,
    "think": False,
    "keep_alive": "5m",
    "options": {
        **{name: value for name, value in FURTHER.items() if name != "repetition_penalty"},
        "repeat_penalty": 1.1,
        "num_predict": 5,
        "stop": ["a"],
        "num_ctx": 7,
    },
}
OLLAMA_CHAT = OLLAMA | {
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a"},
        {
            "role": "assistant",
            "content": "c",
            "thinking": "t",
            "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"a": 1}}}],
        },
        {"role": "tool", "content": "x", "tool_name": "f", "tool_call_id": "1"},
        {"role": "user", "content": "hi"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}],
}
OLLAMA_GENERATE = OLLAMA | {"prompt": "a", "system": "s", "raw": False, "context": [1, 2], "suffix": "", "template": ""}
INFER = {
    "id": "1",
    "inputs": [
        {"name": "text_input", "shape": [2], "datatype": "BYTES", "data": ["a", "b"]},
        {"name": "top_k", "shape": [2], "datatype": "INT32", "data": [1, 2]},
    ],
    "parameters": {"max_tokens": 5},
    "outputs": [{"name": "text_output", "parameters": {"binary_data": True}}],
}

#: name -> dialect, operation, body with nearly all fields, and the model's options.
CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "chat": ("openai", "chat", CHAT, {}),
    "completion": (
        "openai",
        "completion",
        SHARED | {"prompt": ["a", "b"], "logprobs": 2, "echo": False, "best_of": 2, "suffix": ""},
        {},
    ),
    "LMI": ("lmi", "predict", LMI, {}),
    "LMI chat": ("lmi", "predict", CHAT, {}),
    "LMI batch": ("lmi", "predict", LMI | {"inputs": ["a", "b"]}, {"rolling_batch": "disable"}),
    "TGI": ("tgi", "compat_generate", TGI, {}),
    "Anthropic": ("anthropic", "messages", ANTHROPIC, {}),
    "responses": ("responses", "create_response", RESPONSES, {}),
    "Ollama": ("ollama", "ollama_chat", OLLAMA_CHAT, {}),
    "Ollama prompt": ("ollama", "ollama_generate", OLLAMA_GENERATE, {}),
    "MindIE": ("mindie", "generate_stream", MINDIE, {}),
    "Triton": ("triton", "generate", GENERATE, {}),
    "Triton infer": ("triton", "infer", INFER, {}),
}

#: Stands for a field that is not there.
MISSING: Final = object()
#: What no field can be, unless it is free.
NOTHING: Any = [[[]]]
#: What one field or another can't be.
VALUES: list[Any] = [
    MISSING,
    True,
    0,
    -1,
    1.5,
    1 << 70,
    1e300,
    "",
    "zzz",
    [],
    {},
    [None],
    [1],
    [""],
    {"a": 1},
    {"type": "text"},
]
#: Messages that begin otherwise than with the field, as their APIs have them.
WORDS = ("`", "grammar is not valid: ", "served does not support insert")
#: Fields whose values are anybody's: data of schemas, and variables of templates. ^ is the beginning of a path.
FREE = (
    *("^format.", "^context", "^options.num_ctx", "function.arguments."),
    *("response_format.json_schema.schema.", "chat_template_kwargs.", "parameters.grammar.value."),
    *("content[0].input.", "input_schema.properties", "text.format.schema."),
)
#: A field -> another that may be said to be wrong beside it.
BESIDE = {
    "max_tokens": ("max_completion_tokens", "min_tokens"),
    "logprobs": ("top_logprobs",),
    "n": ("best_of",),
    "thinking_budget": ("thinking.budget_tokens",),
    "thinking.type": ("thinking.budget_tokens",),
    "stream": ("parameters.best_of", "parameters.decoder_input_details", "best_of", "stream_options"),
    "parameters.max_new_tokens": ("parameters.min_new_tokens",),
    "parameters.max_tokens": ("min_tokens",),
    "tools": ("tool_choice",),
    "tools[0].name": ("tool_choice.name",),
    "tools[0]": ("tool_choice",),
    "messages": ("inputs",),
    **dict.fromkeys(("input[4]", "input[4].call_id"), ("input[5].call_id",)),
    "tools[0].function.name": ("tool_choice.function.name",),
}


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The keys to every value within `value`."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in items:
        yield (*at, key)
        yield from places(one, (*at, key))


def path(at: tuple[Any, ...]) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in at).removeprefix(".")


def refusal(name: str, at: tuple[Any, ...], value: Any) -> PayloadError | ParameterError | None:
    """What is said of the body with `value` in this place; None: it is taken."""
    kind, operation, body, options = CASES[name]
    changed = holder = json.loads(json.dumps(body))
    for key in at[:-1]:
        holder = holder[key]
    if value is MISSING:
        del holder[at[-1]]
    else:
        holder[at[-1]] = value
    try:
        dialect(kind).parse(inputs(operation, changed, kind), model(**options))
    except (PayloadError, ParameterError) as error:
        return error
    return None


def same(field: str, place: str) -> bool:
    """Whether one is the other, or part of it; where a parameter was given does not count."""
    named, wanted = field.removeprefix("parameters."), place.removeprefix("parameters.")
    short, long = sorted((named, wanted), key=len)
    return long == short or long.startswith((f"{short}.", f"{short}["))


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_field_is_named(name: str) -> None:
    tensors = ("text_input", "top_k") if name == "Triton infer" else ()  # which are named by what they hold
    for at in places(CASES[name][2]):
        place = path(at)
        for value in VALUES:
            if (error := refusal(name, at, value)) is None:
                continue
            field = error.field
            assert field, (place, value, error.message)
            assert same(field, place) or field in (*BESIDE.get(place, ()), *tensors), (place, value, field)
            assert error.message.startswith((f"{field}: ", *WORDS)), (place, error.message)


@pytest.mark.parametrize("name", CASES)
def test_a_value_of_a_wrong_type_is_refused_in_every_field(name: str) -> None:
    for at in places(CASES[name][2]):
        place = path(at)
        if not any(free in f"^{place}" for free in FREE) and ".parameters.properties" not in place:
            assert refusal(name, at, NOTHING) is not None, place
