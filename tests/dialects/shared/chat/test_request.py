"""A chat's fields: what becomes of each, and what is refused, in which words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from djl_python.config import Checkpoint, ModelConfig
from djl_python.core import errors
from djl_python.core.types import Branching, Chat, GenerateRequest, Grammar, ThinkingBudget, ToolUse
from djl_python.dialects.shared.chat.request import read_chat
from djl_python.dialects.shared.fields.generation import UNBOUNDED
from tests.dialects.exchange import model

USER = {"role": "user", "content": "Hi."}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
GBNF = 'root ::= "a"'
SCHEMA_TEXT = json.dumps(SCHEMA, separators=(",", ":"))
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}
LARGE = {"properties": {"x": {"type": "integer", "minimum": 2**64}}, "required": ["x"]}
LARGE_TOOL = {"type": "function", "function": {"name": "f", "parameters": LARGE}}


def read(body: dict[str, Any], served: ModelConfig | None = None, *, must_fit: bool = True) -> GenerateRequest:
    return read_chat({"messages": [USER]} | body, served or model(), must_fit=must_fit).request


def chat_of(body: dict[str, Any], **options: Any) -> Chat:
    prompt = read(body, model(**options)).prompt
    assert isinstance(prompt, Chat)
    return prompt


# ------------------------------------------------------------------------------------------------ fields


def test_a_chat_of_one_message_has_default_parameters() -> None:
    request = read({})
    assert request.prompt == Chat(messages=(USER,))
    assert request.branching == Branching()
    assert not request.add_special_tokens
    assert (request.sampling.max_new_tokens, request.must_fit) == (UNBOUNDED, False)
    assert (request.sampling.do_sample, request.sampling.temperature) == (True, 1.0)
    assert request.ignored == ()


def test_every_field_reaches_the_engine() -> None:
    request = read(
        {
            "max_tokens": 9,
            "temperature": 0.5,
            "top_p": 0.9,
            "n": 3,
            "stop": "END",
            "seed": -1,
            "logit_bias": {"5": -100, "7": 2.5},
            "logprobs": True,
            "top_logprobs": 2,
            "presence_penalty": 1,
            "frequency_penalty": -1,
            "top_k": -1,
            "min_p": 0.1,
            "typical_p": 0.8,
            "repetition_penalty": 1.1,
            "ignore_eos": True,
            "min_tokens": 2,
            "stop_token_ids": [1, 2, 1],
            "bad_words": ["no"],
            "truncate_prompt_tokens": 100,
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "include_stop_str_in_output": True,
        }
    )
    sampling, text = request.sampling, request.text
    assert (sampling.max_new_tokens, sampling.min_new_tokens, request.must_fit) == (9, 2, True)
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 0)
    assert (sampling.min_p, sampling.typical_p, sampling.repetition_penalty) == (0.1, 0.8, 1.1)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (1, -1)
    assert sampling.seed == 2**64 - 1
    assert sampling.logit_bias == {5: -100, 7: 2.5}
    assert (sampling.ignore_eos, sampling.stop_token_ids, sampling.top_logprobs) == (True, (1, 2), 2)
    assert (request.bad_sequences, request.truncate) == (("no",), 100)
    assert request.branching == Branching(n=3, best_of=3)
    assert (text.stop_sequences, text.include_stop_str_in_output) == (("END",), True)
    assert (text.skip_special_tokens, text.spaces_between_special_tokens) == (False, False)
    assert request.ignored == ()


def test_max_completion_tokens_limits_the_answer() -> None:
    assert read({"max_completion_tokens": 5}).sampling.max_new_tokens == 5
    assert read({"max_completion_tokens": 5, "max_tokens": 5}).sampling.max_new_tokens == 5
    assert not read({"max_tokens": 5}, must_fit=False).must_fit


def test_no_alternatives_need_no_logprobs() -> None:
    assert read({"top_logprobs": 0, "logprobs": False}).sampling.top_logprobs == 0


def test_seeds_are_drawn() -> None:
    assert read({}).sampling.seed != read({}).sampling.seed


@pytest.mark.parametrize("body", [{"temperature": 0}, {"temperature": 0.0, "n": 1}, {"top_p": 0}])
def test_a_temperature_or_a_nucleus_of_zero_is_greedy(body: dict[str, Any]) -> None:
    request = read(body)
    assert (request.sampling.do_sample, request.sampling.seed, request.ignored) == (False, 0, ())


def test_sampling_parameters_have_no_effect_on_a_greedy_chat() -> None:
    request = read({"temperature": 0, "top_p": 0.9, "top_k": 5, "min_p": 0.0, "seed": 1})
    assert request.ignored == ("seed", "top_k", "top_p")
    assert (request.sampling.top_k, request.sampling.top_p) == (0, 1.0)


def test_the_checkpoint_decides_what_is_left_open() -> None:
    config = {
        "temperature": 0.6,
        "top_p": 0.95,
        "top_k": 20,
        "repetition_penalty": 1.05,
        "min_p": None,
        "do_sample": True,
    }
    served = model(Checkpoint(generation_config=config))
    open_ = read({}, served).sampling
    assert (open_.temperature, open_.top_p, open_.top_k, open_.repetition_penalty) == (0.6, 0.95, 20, 1.05)
    said = read({"temperature": 1.5, "top_p": 1, "top_k": 0}, served).sampling
    assert (said.temperature, said.top_p, said.top_k) == (1.5, 1, 0)
    greedy = read({"temperature": 0}, served).sampling
    assert (greedy.do_sample, greedy.top_p, greedy.repetition_penalty) == (False, 1.0, 1.05)
    written = read({}, model(Checkpoint(generation_config={"top_k": 20.0}))).sampling
    assert (written.top_k, type(written.top_k)) == (20, int)


def test_defaults_of_a_checkpoint_that_are_no_numbers_are_left_out() -> None:
    config = {"temperature": float("nan"), "top_k": float("inf"), "top_p": "0.5", "repetition_penalty": True}
    seeded = {"seed": 1}
    assert read(seeded, model(Checkpoint(generation_config=config))).sampling == read(seeded, model()).sampling


def test_a_checkpoint_that_does_not_sample_is_greedy() -> None:
    served = model(Checkpoint(generation_config={"do_sample": False}))
    assert not read({}, served).sampling.do_sample
    assert read({"top_p": 0.5}, served).ignored == ("top_p",)
    assert read({"temperature": 1}, served).sampling.do_sample


# ------------------------------------------------------------------------------------------------ formats


IN_SCHEMA = "response_format.json_schema.schema"
IN_VALUE = "response_format.value"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Grammar("json_object")),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": SCHEMA, "strict": True},
                }
            },
            Grammar("json_schema", SCHEMA_TEXT, IN_SCHEMA),
        ),
        (
            {"response_format": {"type": "json_schema", "value": {"schema": SCHEMA}}},
            Grammar("json_schema", SCHEMA_TEXT, IN_VALUE),
        ),
        ({"response_format": {"type": "json_schema", "value": SCHEMA}}, Grammar("json_schema", SCHEMA_TEXT, IN_VALUE)),
        ({"response_format": {"type": "json_object", "value": SCHEMA}}, Grammar("json_schema", SCHEMA_TEXT, IN_VALUE)),
        (
            {"response_format": {"type": "json_object", "schema": SCHEMA}},
            Grammar("json_schema", SCHEMA_TEXT, "response_format.schema"),
        ),
        ({"response_format": {"type": "json", "value": SCHEMA}}, Grammar("json_schema", SCHEMA_TEXT, IN_VALUE)),
        ({"response_format": {"type": "json", "value": SCHEMA_TEXT}}, Grammar("json_schema", SCHEMA_TEXT, IN_VALUE)),
        ({"response_format": {"type": "regex", "value": "a+"}}, Grammar("regex", "a+", IN_VALUE)),
        ({"guided_json": SCHEMA}, Grammar("json_schema", SCHEMA_TEXT, "guided_json")),
        ({"guided_regex": "a+"}, Grammar("regex", "a+", "guided_regex")),
        ({"regex": "a+"}, Grammar("regex", "a+", "regex")),
        ({"json_schema": SCHEMA}, Grammar("json_schema", SCHEMA_TEXT, "json_schema")),
        ({"json_schema": SCHEMA_TEXT}, Grammar("json_schema", SCHEMA_TEXT, "json_schema")),
        ({"guided_choice": ["é 1", "b"]}, Grammar("regex", r"é\x201|b", "guided_choice")),
        ({"structured_outputs": {"json": SCHEMA}}, Grammar("json_schema", SCHEMA_TEXT, "structured_outputs.json")),
        ({"structured_outputs": {"json": SCHEMA_TEXT}}, Grammar("json_schema", SCHEMA_TEXT, "structured_outputs.json")),
        ({"structured_outputs": {"regex": "a+"}}, Grammar("regex", "a+", "structured_outputs.regex")),
        ({"structured_outputs": {"choice": ["a"]}}, Grammar("regex", "a", "structured_outputs.choice")),
        ({"structured_outputs": {"json_object": True}}, Grammar("json_object")),
        ({"structured_outputs": {"grammar": GBNF}}, Grammar("gbnf", GBNF, "structured_outputs.grammar")),
        *(({name: GBNF}, Grammar("gbnf", GBNF, name)) for name in ("grammar", "ebnf", "guided_grammar")),
    ],
)
def test_response_formats_become_grammars(body: dict[str, Any], expected: Grammar | None) -> None:
    assert read(body).sampling.grammar == expected


def test_objects_have_the_properties_that_a_schema_lists() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    grammar = read({"guided_json": schema}).sampling.grammar
    assert grammar is not None
    assert json.loads(grammar.source) == {**schema, "additionalProperties": False}


# ------------------------------------------------------------------------------------------------ tools


@pytest.mark.parametrize(
    ("body", "choice", "name", "parallel"),
    [
        ({}, "auto", "", True),
        ({"tool_choice": "none"}, "none", "", True),
        ({"tool_choice": "required", "parallel_tool_calls": False}, "required", "", False),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "named", "f", True),
        ({"tool_choice": {"function": {"name": "f"}}}, "named", "f", True),
        ({"tool_choice": "f"}, "named", "f", True),
    ],
)
def test_tools_and_their_choice_are_read(body: dict[str, Any], choice: Any, name: str, parallel: bool) -> None:
    expected = ToolUse(tools=(TOOL,), choice=choice, name=name, parallel=parallel)
    assert chat_of({"tools": [TOOL]} | body).tool_use == expected


@pytest.mark.parametrize(
    ("choice", "expected"),
    [(None, ("auto", "")), ("auto", ("auto", "")), ("none", ("none", "")), ({"name": "f"}, ("named", "f"))],
)
def test_functions_are_tools_of_which_one_is_called(choice: Any, expected: tuple[Any, str]) -> None:
    use = chat_of({"functions": [TOOL["function"]], "function_call": choice}).tool_use
    assert use == ToolUse(tools=(TOOL,), choice=expected[0], name=expected[1], parallel=False)


@pytest.mark.parametrize(
    "body",
    [{}, {"tools": []}, {"tool_choice": "auto"}, {"tool_choice": "none"}, {"functions": [], "function_call": "none"}],
)
def test_a_chat_without_tools_has_no_tool_use(body: dict[str, Any]) -> None:
    assert chat_of(body).tool_use is None


def test_tool_prompt_introduces_the_tools() -> None:
    body = {"tool_prompt": "Call one:"}
    use = chat_of(body | {"tools": [TOOL], "tool_choice": "required"}).tool_use
    assert use is not None and use.prompt == "Call one:"
    assert read(body | {"tools": [TOOL], "tool_choice": "required"}).ignored == ()
    assert read(body).ignored == ("tool_prompt",)


def test_parameters_may_have_tgis_name_or_be_left_out() -> None:
    tgis = {"function": {"name": "f", "arguments": SCHEMA}}
    bare = {"type": "function", "function": {"name": "g", "strict": True}}
    use = chat_of({"tools": [tgis, bare]}).tool_use
    assert use is not None
    assert [tool["function"] for tool in use.tools] == [
        {"name": "f", "parameters": SCHEMA},
        {"name": "g", "parameters": {"type": "object", "properties": {}}},
    ]


@pytest.mark.parametrize("schema", [{"properties": {}}, {"type": ["null", "object"]}, LARGE])
def test_parameters_are_objects_with_or_without_a_type(schema: dict[str, Any]) -> None:
    use = chat_of({"tools": [{"function": {"name": "f", "parameters": schema}}]}).tool_use
    assert use is not None and use.tools[0]["function"]["parameters"] == schema


def test_a_format_beside_forced_tools_is_refused() -> None:
    """It is the form of an answer, where the model is free to answer."""
    body = {"tools": [TOOL], "response_format": {"type": "json_object"}}
    assert read(body).sampling.grammar == Grammar("json_object")
    assert read(body | {"tool_choice": "none"}).sampling.grammar == Grammar("json_object")
    forced = read(body | {"tool_choice": "required"})
    assert (forced.sampling.grammar, forced.ignored) == (None, ("response_format",))
    for choice in ("auto", "none", "required"):
        with pytest.raises(errors.ParameterError, match=r"^Grammar and tools are mutually exclusive$") as caught:
            read(body | {"tool_choice": choice}, model(tgi_compat=True))
        assert caught.value.field == "response_format"
    alone = {"response_format": {"type": "json_object"}}
    assert read(alone | {"tools": []}).sampling.grammar == Grammar("json_object")
    with pytest.raises(errors.ParameterError, match="mutually exclusive"):
        read(alone | {"tools": []}, model(tgi_compat=True))
    assert read(alone, model(tgi_compat=True)).sampling.grammar == Grammar("json_object")


def test_schemas_are_not_nested_without_end() -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(120):
        schema = {"items": schema}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    for body, field in (
        ({"guided_json": schema}, "guided_json"),
        ({"response_format": {"type": "json", "value": json.dumps(schema)}}, "response_format.value"),
        ({"tools": tools}, "tools[0].function.parameters"),
    ):
        with pytest.raises(errors.ParameterError, match=r"expected a JSON schema of at most 100 levels$") as caught:
            read(body)
        assert caught.value.field == field


# ------------------------------------------------------------------------------------------------ the template's


@pytest.mark.parametrize(
    ("body", "budget"),
    [
        ({}, None),
        ({"thinking_token_budget": 0}, ThinkingBudget(0, "thinking_token_budget")),
        ({"thinking_budget": 7}, ThinkingBudget(7, "thinking_budget")),
        ({"thinking_budget": 7, "thinking_token_budget": 7}, ThinkingBudget(7, "thinking_token_budget")),
        ({"thinking": {"type": "enabled", "budget_tokens": 7}}, ThinkingBudget(7, "thinking")),
        ({"thinking": {"type": "enabled"}}, None),
        ({"thinking": {"type": "disabled"}}, None),
    ],
)
def test_a_budget_for_reasoning(body: dict[str, Any], budget: ThinkingBudget | None) -> None:
    assert read(body).thinking_budget == budget
    assert chat_of(body).variables.get("thinking_budget") == (None if budget is None else budget.tokens)


@pytest.mark.parametrize(("kind", "on"), [("enabled", True), ("disabled", False), ("adaptive", None)])
def test_thinking_is_a_switch_of_the_template(kind: str, on: bool | None) -> None:
    chat = chat_of({"thinking": {"type": kind}})
    switches = ("enable_thinking", "thinking") if on is not None else ()
    assert chat.variables == dict.fromkeys(switches, on)
    assert chat.variable_fields == dict.fromkeys(switches, "thinking")
    named = chat_of({"thinking": {"type": kind}, "chat_template_kwargs": {"enable_thinking": "own"}})
    assert named.variables["enable_thinking"] == "own"


def test_template_arguments_reach_the_template() -> None:
    chat = chat_of(
        {
            "chat_template_kwargs": {"enable_thinking": False},
            "guideline": "Be kind.",
            "reasoning_effort": "low",
            "add_generation_prompt": False,
        }
    )
    assert chat.variables == {"enable_thinking": False, "guideline": "Be kind.", "reasoning_effort": "low"}
    assert chat.variable_fields == {"enable_thinking": "chat_template_kwargs.enable_thinking"}
    assert not chat.add_generation_prompt


def test_the_last_message_can_be_continued() -> None:
    messages = [USER, {"role": "assistant", "content": "Good"}]
    assert chat_of({"messages": messages, "continue_final_message": True}).continue_final
    assert not chat_of({"messages": messages}).continue_final
    assert chat_of({"messages": messages}, tgi_compat=True).continue_final
    assert not chat_of({"messages": messages, "continue_final_message": False}, tgi_compat=True).continue_final
    assert not chat_of({}, tgi_compat=True).continue_final
    assert not chat_of({"messages": messages, "add_generation_prompt": True}, tgi_compat=True).continue_final
    calls = [{"function": {"name": "f", "arguments": "{}"}}]
    called = {"role": "assistant", "content": "Good", "tool_calls": calls}
    assert not chat_of({"messages": [USER, called]}, tgi_compat=True).continue_final


# ------------------------------------------------------------------------------------------------ refused


def test_unknown_fields_are_named() -> None:
    body = {
        "zzz": 1,
        "nothing": None,
        "messages": [USER | {"weight": 1}, USER | {"weight": 1}],
        "tools": [TOOL | {"x": 1}],
    }
    assert read(body).ignored == ("messages.weight", "tools.x", "zzz")
    with pytest.raises(errors.ParameterError) as caught:
        read(body, model(unknown_parameters="error"))
    assert caught.value.message == "messages.weight: no such field (option.unknown_parameters=error)"
    assert read({"user": "me"}, model(unknown_parameters="error")).ignored == ()


@pytest.mark.parametrize("temperature", [0, 1])
def test_wishes_to_openais_service_are_ignored_and_labels_are_not(temperature: float) -> None:
    """Labels ask for nothing, so that nothing is missed."""
    labels = {"user": "me", "metadata": {"a": "b"}, "store": True, "safety_identifier": "x"}
    wishes = {"service_tier": "flex", "prompt_cache_key": "k", "prompt_cache_retention": "24h", "prediction": {}}
    assert read({**labels, **wishes, "temperature": temperature}).ignored == tuple(sorted(wishes))
    assert read({"service_tier": "auto", "prediction": None, "temperature": temperature}).ignored == ()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"temperature": 3}, "temperature: expected a number >= 0 and <= 2, got 3"),
        ({"temperature": "hot"}, 'temperature: expected a number >= 0 and <= 2, got "hot"'),
        ({"top_p": 1.1}, "top_p: expected a number >= 0 and <= 1, got 1.1"),
        ({"n": 0}, "n: expected an integer >= 1 and <= 128, got 0"),
        ({"n": 1.5}, "n: expected an integer >= 1 and <= 128, got 1.5"),
        ({"stop": ""}, 'stop: expected a non-empty string or an array, each item a non-empty string, got ""'),
        ({"stop": ["a", 1]}, "stop[1]: expected a non-empty string, got 1"),
        ({"stop": "x" * 40_000}, "stop: expected at most 32768 characters together, got 40000"),
        ({"seed": 2**64}, "seed: expected a 64-bit integer, got 18446744073709551616"),
        ({"presence_penalty": -3}, "presence_penalty: expected a number >= -2 and <= 2, got -3"),
        (
            {"logit_bias": {"5": 101}},
            "logit_bias: expected an object, each key an integer >= 0, each value a number >= -100 and <= 100",
        ),
        (
            {"logit_bias": {"five": 1}},
            "logit_bias: expected an object, each key an integer >= 0, each value a number >= -100 and <= 100",
        ),
        ({"max_tokens": 0}, "max_tokens: expected an integer >= 1, got 0"),
        (
            {"max_tokens": 1, "max_completion_tokens": 2},
            "max_completion_tokens: the same as max_tokens, and they differ",
        ),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens: expected at most max_tokens (4), got 5"),
        ({"top_logprobs": 2}, "top_logprobs: only with logprobs=true"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs: expected an integer >= 0 and <= 20, got 21"),
        ({"stream": "yes"}, 'stream: expected true or false, got "yes"'),
        ({"stream_options": {"include_usage": True}}, "stream_options: only with stream=true"),
        ({"modalities": ["text", "audio"]}, 'modalities: expected ["text"]'),
        ({"function_call": {"name": "f"}}, "function_call: only where there are functions"),
        ({"functions": [], "function_call": {"name": "f"}}, "function_call: only where there are functions"),
        ({"functions": [{"name": "f"}], "tools": []}, "tools: not together with functions or function_call"),
        ({"function_call": "auto", "tool_choice": "auto"}, "tool_choice: not together with functions or function_call"),
        ({"functions": [{"name": "f"}], "function_call": "required"}, 'function_call: expected "auto", "none" or an'),
        (
            {"functions": [{"name": "f"}], "function_call": {"name": "g"}},
            'function_call.name: expected one of the functions (f), got "g"',
        ),
        ({"functions": [{"name": "no name"}]}, "functions[0].name: expected a name of 1 to 64 letters"),
        (
            {"functions": [{"name": "f", "parameters": {"type": "string"}}]},
            'functions[0].parameters.type: expected "object", got "string"',
        ),
        (
            {"response_format": {"type": "xml"}},
            'response_format.type: expected "text", "json_schema", "json_object", "json" or "regex", got "xml"',
        ),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema: required, expected an object"),
        ({"response_format": {"type": "regex"}}, "response_format.value: required, expected a non-empty string"),
        (
            {"response_format": {"type": "json", "value": "{"}},
            "response_format.value: expected a JSON schema, got a string that is not JSON",
        ),
        (
            {"response_format": {"type": "json_object", "value": ""}},
            "response_format.value: expected a JSON schema, got a string that is not JSON",
        ),
        (
            {"response_format": {"type": "json", "value": "[1]"}},
            "response_format.value: expected a JSON schema, got [1]",
        ),
        (
            {"guided_regex": "a", "response_format": {"type": "json_object"}},
            "guided_regex: not together with response_format",
        ),
        ({"guided_choice": []}, "guided_choice: expected a non-empty array, each item a non-empty string, got []"),
        ({"guided_choice": ["a"] * 1025}, "guided_choice: expected at most 1024 texts, got 1025"),
        ({"guided_grammar": ""}, "guided_grammar: expected a non-empty string"),
        ({"grammar": "x" * 32_769}, "grammar: expected at most 32768 characters, got 32769"),
        ({"allowed_token_ids": [1]}, "allowed_token_ids: not served, expected logit_bias"),
        ({"ebnf": "root ::= a", "regex": "a"}, "ebnf: not together with regex"),
        ({"grammar": {"type": "regex", "value": "a"}}, "grammar: expected a non-empty string"),
        ({"thinking_budget": -1}, "thinking_budget: expected an integer >= 0, got -1"),
        ({"thinking_token_budget": 1.5}, "thinking_token_budget: expected an integer >= 0, got 1.5"),
        ({"thinking": {"type": "on"}}, 'thinking.type: expected "adaptive", "disabled" or "enabled", got "on"'),
        (
            {"thinking": {"type": "disabled", "budget_tokens": 1}},
            'thinking.budget_tokens: only where thinking.type is "enabled"',
        ),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 1}, "thinking_budget": 2},
            "thinking.budget_tokens: the same as thinking_budget, and they differ",
        ),
        ({"json_schema": SCHEMA, "regex": "a"}, "regex: not together with json_schema"),
        (
            {"structured_outputs": {"structural_tag": "a"}},
            "structured_outputs: expected json, regex, choice, grammar or json_object",
        ),
        (
            {"structured_outputs": {"choice": ["a"], "json": {}}},
            "structured_outputs.choice: not together with structured_outputs.json",
        ),
        ({"tools": [{"type": "function"}]}, "tools[0].function: required, expected an object"),
        ({"tools": [{"type": "web"}]}, 'tools[0].type: expected "function", got "web"'),
        (
            {"tools": [{"type": "function", "function": {"name": "no spaces"}}]},
            "tools[0].function.name: expected a name of 1 to 64 letters, digits, underscores, dots and hyphens, got ",
        ),
        ({"tools": [{"type": "function", "function": {"name": "f\n"}}]}, "tools[0].function.name: expected a name"),
        (
            {"tools": [TOOL, {"type": "function", "function": {"name": "g", "parameters": {"type": "string"}}}]},
            'tools[1].function.parameters.type: expected "object", got "string"',
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "g", "arguments": {"type": ["null"]}}}]},
            'tools[0].function.arguments.type: expected "object", got ["null"]',
        ),
        ({"tools": [LARGE_TOOL], "tool_choice": "required"}, "tools[0].function.parameters: expected a minimum that"),
        (
            {"tools": [TOOL | {"function": LARGE_TOOL["function"]}], "tool_choice": {"function": {"name": "f"}}},
            "tools[0].function.parameters: expected a minimum that",
        ),
        ({"guided_json": LARGE}, "guided_json: expected a minimum that a 64-bit number holds"),
        ({"guided_json": "[" * 100_000}, "guided_json: expected a JSON schema, got a string that is nested too deeply"),
        (
            {"response_format": {"type": "json", "value": "[" * 100_000}},
            "response_format.value: expected a JSON schema, got a string that is nested too deeply",
        ),
        ({"tool_choice": "required"}, "tool_choice: only where there are tools"),
        ({"tool_choice": {"function": {"name": "f"}}}, "tool_choice: only where there are tools"),
        (
            {"tools": [TOOL], "tool_choice": {"function": {"name": "g"}}},
            'tool_choice.function.name: expected one of the tools (f), got "g"',
        ),
        (
            {"tools": [TOOL], "tool_choice": "always"},
            'tool_choice: expected "auto", "none", "required" or one of the tools (f), got "always"',
        ),
        (
            {"tools": [TOOL], "tool_choice": 1},
            'tool_choice: expected "auto", "none", "required", a tool\'s name (as TGI\'s clients send it) or an object',
        ),
        ({"continue_final_message": True}, "continue_final_message: expected a last message of role assistant"),
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message: not together with add_generation_prompt=true",
        ),
    ],
)
def test_values_out_of_bounds_are_refused(body: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.ParameterError) as caught:
        read(body)
    assert caught.value.message.startswith(message)
    assert caught.value.field == message.partition(":")[0]
