"""Requests on their way in: chats, tools, ids, limits."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tokenizers import normalizers

from djl_python.core.errors import ConfigError, ContextLengthError, ModelLoadError, ParameterError, PayloadError
from djl_python.core.types import Chat, Delta, FreeText, GenerateRequest, Grammar, SamplingParams, ToolUse
from djl_python.text.chat import ChatTemplates
from djl_python.text.tokens.tokenizer import FastBackend
from tests.handlers.conftest import Watch
from tests.handlers.harness import BYTES, EOS, LIMITS, Served, ids

TEMPLATE = (
    "{% if tools %}{{ tools | map(attribute='function') | map(attribute='name') | join(',') }} in <tool_call>: "
    "{% endif %}{% for message in messages %}{% if message.role == 'bad' %}{{ raise_exception('no bad roles') }}"
    "{% endif %}{{ message.role[0] }}={{ message.content }};{% endfor %}{% if add_generation_prompt %}a={% endif %}"
)
LONG = "xxxx " * 100_000
TOOLS = tuple({"type": "function", "function": {"name": name}} for name in ("now", "who"))


@pytest.fixture
async def chatting(model_dir: Path) -> Served:
    (model_dir / "chat_template.jinja").write_text(TEMPLATE)
    return await Served(model_dir).load()


def chat(*contents: str, role: str = "user", **rest: Any) -> Chat:
    return Chat(messages=tuple({"role": role, "content": content} for content in contents), **rest)


def request(prompt: Any, max_new_tokens: int = 2**40, **rest: Any) -> GenerateRequest:
    return GenerateRequest(prompt=prompt, sampling=SamplingParams(max_new_tokens=max_new_tokens), **rest)


def prompt_of(served: Served, number: int = 1) -> str:
    return str(BYTES.decode(served.engine.prompts[number], skip_special_tokens=False))


async def test_a_chat_is_written_by_the_template(chatting: Served) -> None:
    (*_, last) = await chatting.plain(request(chat("hi")))
    assert prompt_of(chatting) == "u=hi;a="
    assert last.finish is not None and last.finish.prompt == "u=hi;a="
    # What is left of the context.
    assert chatting.engine.sampling[1].max_new_tokens == 64 - len(ids("u=hi;a="))


async def test_a_long_chat_is_rendered_and_tokenized_off_the_loop(chatting: Served, watch: Watch) -> None:
    rendered, tokenized = watch(ChatTemplates, "render"), watch(FastBackend, "encode")
    with pytest.raises(ContextLengthError, match=r"^messages: 30005 tokens"):
        await chatting.plain(request(chat("x" * 30_000)))
    assert rendered == tokenized == [True]


_HIDDEN = "x" * 30_000


@pytest.mark.parametrize(
    "long",
    [
        {"messages": ({"role": "user", "tool_calls": [{"function": {"name": "f", "arguments": {"a": _HIDDEN}}}]},)},
        {"messages": ({"role": "assistant", "content": "x", "reasoning_content": _HIDDEN},)},
        {"messages": ({"role": "user", "content": "x"},) * 1000},
        {"tool_use": ToolUse(tools=({"type": "function", "function": {"name": "f", "description": _HIDDEN}},))},
        {"variables": {"documents": [_HIDDEN]}},
    ],
    ids=["arguments", "reasoning", "many messages", "tools", "variables"],
)
async def test_a_chat_is_long_wherever_its_length_is(model_dir: Path, watch: Watch, long: dict[str, Any]) -> None:
    (model_dir / "chat_template.jinja").write_text("{{ messages | length }}")
    served = await Served(model_dir).load()
    rendered = watch(ChatTemplates, "render")
    await served.plain(request(Chat(**{"messages": ({"role": "user", "content": "x"},), **long})))
    assert rendered == [True]


async def test_a_short_chat_is_rendered_at_once(chatting: Served, watch: Watch) -> None:
    rendered = watch(ChatTemplates, "render")
    await chatting.plain(request(chat("hi")))
    assert rendered == [False]


async def test_a_slow_template_leaves_the_loop_to_others(
    model_dir: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    (model_dir / "chat_template.jinja").write_text("a{% for i in range(1000) %}{% endfor %}b")
    served = await Served(model_dir).load()
    rendered = watch(ChatTemplates, "render")
    monkeypatch.setattr("djl_python.handlers.preparation.LOOP_S", -1.0)
    for _ in range(2):
        await served.plain(request(chat("hi")))
        assert prompt_of(served) == "ab"
    assert rendered == [False, True, True]  # in a thread; from then on without an attempt


async def test_the_last_message_can_be_continued(chatting: Served) -> None:
    await chatting.plain(request(chat("We", role="assistant", continue_final=True)))
    assert prompt_of(chatting) == "a=We"


async def test_the_chat_templates_refusal_is_passed_on(chatting: Served) -> None:
    with pytest.raises(PayloadError, match="the chat template refuses these messages: no bad roles"):
        await chatting.plain(request(chat("x", role="bad")))


async def test_no_template(served: Served) -> None:
    with pytest.raises(PayloadError, match="this model has no chat template") as caught:
        await served.plain(request(chat("x")))
    assert caught.value.field == "messages"


async def test_a_broken_template_costs_only_chats(model_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    (model_dir / "chat_template.jinja").write_text("{% for %}")
    with caplog.at_level(logging.WARNING):
        served = await Served(model_dir).load()
    assert "the chat template is not valid: line 1" in caplog.text
    await served.plain(request("text"))
    with pytest.raises(PayloadError, match="the chat template is not valid"):
        await served.plain(request(chat("x")))


async def test_ids_must_be_of_the_vocabulary(served: Served) -> None:
    with pytest.raises(ParameterError, match=r"inputs: token id 9999, expected 0 to 256 \(the vocabulary\)"):
        await served.plain(request((1, 9999)))


@pytest.mark.parametrize("prompt", [EOS, (256,), chat(EOS)], ids=["text", "ids", "chat"])
async def test_the_model_may_have_fewer_tokens_than_its_tokenizer(model_dir: Path, prompt: Any) -> None:
    """A token was added to the tokenizer and the model was not told: the request's own field is named."""
    (model_dir / "chat_template.jinja").write_text("{{ messages[0].content }}")
    served = await Served(model_dir, msgspec.structs.replace(LIMITS, vocabulary=256)).load()
    await served.plain(request("hi"))
    field = "messages" if isinstance(prompt, Chat) else "inputs"
    with pytest.raises(
        ParameterError, match=rf"^{field}: token id 256, expected 0 to 255 \(the vocabulary\)$"
    ) as caught:
        await served.plain(request(prompt))
    assert caught.value.field == field
    task, _ = served.call("openai", "completion", {"prompt": "hi", "logit_bias": {"256": 1}})
    with pytest.raises(ParameterError, match=r"^logit_bias: token id 256, expected 0 to 255 "):
        await task


async def test_a_prompt_that_must_fit_and_does_not_is_refused(served: Served) -> None:
    with pytest.raises(ContextLengthError, match="inputs: 60 tokens and 5 to generate, expected at most 64 together"):
        await served.plain(request("x" * 60, max_new_tokens=5, must_fit=True))
    await served.plain(request("x" * 60, max_new_tokens=4, must_fit=True))


async def test_max_input_tokens(model_dir: Path) -> None:
    served = await Served(model_dir).load(max_input_tokens=5)
    await served.plain(request("x" * 5))
    with pytest.raises(ContextLengthError, match=r"6 tokens, expected at most 5 \(option\.max_input_tokens\)"):
        await served.plain(request("x" * 6))


@pytest.fixture
def longest_encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Characters of each text that is tokenized, or tokens of those that are decoded."""
    lengths = [0]

    def watched(name: str) -> None:
        original = getattr(FastBackend, name)

        def watch(self: FastBackend, first: Any, *rest: Any) -> Any:
            lengths.append(len(first))
            return original(self, first, *rest)

        monkeypatch.setattr(FastBackend, name, watch)

    for name in ("encode", "spans", "decode"):
        watched(name)
    return lengths


@pytest.mark.parametrize(
    ("dialect", "operation", "body", "said"),
    [
        ("lmi", "predict", {"inputs": LONG}, "inputs: at least 99[0-9]{3} tokens, expected at most 63 "),
        ("tgi", "generate", {"inputs": LONG}, "^inputs: at least 99[0-9]{3} tokens"),
        ("openai", "completion", {"prompt": LONG}, "^inputs: at least 99[0-9]{3} tokens"),
        (
            "plain",
            "generate",
            {"requests": [GenerateRequest(prompt=(1,) * 300_000, sampling=SamplingParams(max_new_tokens=1))]},
            "^inputs: 300000 tokens",
        ),
        (
            "plain",
            "generate",
            {"requests": [GenerateRequest(prompt=(9_999,) * 70, sampling=SamplingParams(max_new_tokens=1))]},
            "^inputs: 70 tokens",
        ),
        # The tokens to keep are more than the context has.
        ("tgi", "generate", {"inputs": LONG, "parameters": {"truncate": 64}}, "^inputs: at least 99[0-9]{3} tokens"),
    ],
)
async def test_a_prompt_that_can_not_fit_is_not_tokenized(
    served: Served, longest_encoded: list[int], dialect: str, operation: str, body: Any, said: str
) -> None:
    longest_encoded.clear()
    with pytest.raises(ContextLengthError, match=said):
        await served.ended(*served.call(dialect, operation, body))
    assert max(longest_encoded, default=0) <= 100_000


async def test_of_a_chat_that_can_not_fit_a_piece_is_tokenized(chatting: Served, longest_encoded: list[int]) -> None:
    with pytest.raises(ContextLengthError, match=r"^messages: at least 99[0-9]{3} tokens"):
        await chatting.plain(request(chat(LONG)))
    assert max(longest_encoded) <= 100_000


async def test_the_truncated_part_of_a_prompt_is_not_tokenized(served: Served, longest_encoded: list[int]) -> None:
    await served.plain(request(LONG + "the end", truncate=10))
    assert prompt_of(served) == "xx the end"
    assert max(longest_encoded) <= 100_000
    await served.plain(request(tuple(ids("a" * 300_000 + "the end")), truncate=10))
    assert prompt_of(served, 2) == "aaathe end"


async def test_a_long_text_of_few_tokens_fits(model_dir: Path) -> None:
    """Whoever counts says what is sure: a tokenizer may leave out characters."""
    tokenizer = type(BYTES).from_str(BYTES.to_str())
    tokenizer.normalizer = normalizers.Replace("-", "")
    tokenizer.save(str(model_dir / "tokenizer.json"))
    served = await Served(model_dir).load()
    await served.plain(request("a" + "-" * 300_000 + "z"))
    assert prompt_of(served) == "az"


# ------------------------------------------------------------------------------------------------ tools


def calls(deltas: list[Delta]) -> list[tuple[int, str, str]]:
    parts: dict[int, list[str]] = {}
    for call in (call for delta in deltas for call in delta.tool_calls):
        known = parts.setdefault(call.index, ["", ""])
        known[0] += call.name
        known[1] += call.arguments
    return [(index, *parts[index]) for index in sorted(parts)]  # type: ignore[misc]


@pytest.mark.parametrize("stream", [True, False])
async def test_the_models_calls_are_heard(model_dir: Path, stream: bool) -> None:
    (model_dir / "chat_template.jinja").write_text(TEMPLATE)
    served = await Served(model_dir).load()
    served.engine.reply_to = lambda prompt: 'Ok\n<tool_call>{"name":"now"}'
    deltas = await served.plain(request(chat("hi", tool_use=ToolUse(tools=TOOLS))), stream=stream)
    assert prompt_of(served).startswith("now,who in <tool_call>: u=hi;")
    assert calls(deltas) == [(0, "now", "{}")]
    assert "".join(delta.text for delta in deltas) == "Ok"
    assert "".join(token.text for delta in deltas for token in delta.tokens) == 'Ok\n<tool_call>{"name":"now"}'


async def test_no_tools_no_calls(chatting: Served) -> None:
    text = '<tool_call>{"name":"now"}'
    chatting.engine.reply_to = lambda prompt: text
    deltas = await chatting.plain(request(chat("hi", tool_use=ToolUse(tools=TOOLS, choice="none"))))
    assert prompt_of(chatting) == "u=hi;a="
    assert ("".join(delta.text for delta in deltas), calls(deltas)) == (text, [])


async def test_a_template_without_tools_is_told(model_dir: Path) -> None:
    (model_dir / "chat_template.jinja").write_text("{{ messages[0].content }}")
    body = {"requests": [request(chat("x", tool_use=ToolUse(tools=TOOLS)), ignored=("logit_bias",))]}
    served = await Served(model_dir).load()
    task, reply = served.call("plain", "generate", body)
    await served.submitted()
    await served.engine.run()
    await task
    assert reply.headers["x-ignored-parameters"] == "logit_bias,tools"
    strict = await Served(model_dir).load(unknown_parameters="error")
    with pytest.raises(ParameterError, match="tools: this model's chats have no place for it"):
        await strict.plain(*body["requests"])


@pytest.mark.parametrize(
    ("template", "choice", "unknown", "ignored"),
    [
        ("{{ messages[0].content }}", "auto", "ignore", "tool_prompt,tools"),
        ("{{ messages[0].content }}", "none", "error", "tool_prompt"),
        ("{{ messages[0].content }}", "required", "error", None),
        ("{{ messages[0].content }}{{ tools }}", "required", "error", "tool_prompt"),
    ],
)
async def test_tools_that_no_template_shows_are_in_the_message_of_a_forced_call(
    template: str, choice: Any, unknown: str, ignored: str | None, model_dir: Path
) -> None:
    (model_dir / "chat_template.jinja").write_text(template)
    limits = msgspec.structs.replace(LIMITS, max_model_len=512, kv_blocks=128)
    served = await Served(model_dir, limits).load(unknown_parameters=unknown)
    use = ToolUse(tools=TOOLS, choice=choice, prompt="Call one:")
    asked = {"requests": [request(chat("x", tool_use=use))]}
    reply = await served.ended(*served.call("plain", "generate", asked))
    assert reply.headers.get("x-ignored-parameters") == ignored
    assert ("Call one:" in prompt_of(served)) == (ignored is None)


async def test_variables_that_the_template_does_not_read_are_told(model_dir: Path) -> None:
    (model_dir / "chat_template.jinja").write_text("{{ documents[0] }}")
    served = await Served(model_dir).load()
    variables = {"documents": ["read"], "mood": 1, "guideline": "x"}
    asked = request(chat("x", variables=variables, variable_fields={"mood": "chat_template_kwargs.mood"}))
    task, reply = served.call("plain", "generate", {"requests": [asked]})
    await served.submitted()
    await served.engine.run()
    await task
    assert prompt_of(served) == "read"
    assert reply.headers["x-ignored-parameters"] == "chat_template_kwargs.mood,guideline"
    strict = await Served(model_dir).load(unknown_parameters="error")
    with pytest.raises(ParameterError, match=r"^chat_template_kwargs\.mood: this model's chats have no place"):
        await strict.plain(asked)


async def test_a_forced_call_is_a_grammars(chatting: Served) -> None:
    chatting.engine.reply_to = lambda prompt: '{"name":"who","arguments":{}}'
    use = ToolUse(tools=TOOLS, choice="named", name="who")
    deltas = await chatting.plain(request(chat("x", tool_use=use)), stream=True)
    grammar = chatting.engine.sampling[1].grammar
    assert grammar is not None and grammar.kind == "json_schema"
    assert json.loads(grammar.source)["properties"]["name"] == {"const": "who"}
    assert calls(deltas) == [(0, "who", "{}")]
    assert "".join(delta.text for delta in deltas) == ""


FORM = Grammar("regex", "[A-Z]+", "response_format")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("said", ["Well, it is", '<tool_call>{"no": "call"}', ""])
async def test_an_answer_beside_tools_has_its_form(chatting: Served, stream: bool, said: str) -> None:
    """Once the model answers, what it has begun without the form is forgotten."""
    engine = chatting.engine
    engine.script_of = lambda prompt: ids("ANSWER" if engine.prompts else said)
    sampling = SamplingParams(max_new_tokens=100, grammar=FORM, seed=7, do_sample=True)
    asked = GenerateRequest(prompt=chat("hi", tool_use=ToolUse(tools=TOOLS)), sampling=sampling)
    deltas = await chatting.plain(asked, stream=stream)
    assert ("".join(delta.text for delta in deltas), calls(deltas)) == ("ANSWER", [])
    assert [given.grammar for given in engine.sampling.values()] == [None, FORM]
    assert engine.prompts[1] == engine.prompts[2]
    finish = deltas[-1].finish
    assert finish is not None
    assert (finish.text, finish.generated_tokens, finish.seed) == ("ANSWER", 7, 7)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_call_needs_no_form(chatting: Served, stream: bool) -> None:
    chatting.engine.reply_to = lambda prompt: '<tool_call>{"name":"now"}</tool_call>'
    sampling = SamplingParams(max_new_tokens=100, grammar=FORM)
    asked = GenerateRequest(prompt=chat("hi", tool_use=ToolUse(tools=TOOLS)), sampling=sampling)
    deltas = await chatting.plain(asked, stream=stream)
    assert calls(deltas) == [(0, "now", "{}")]
    assert len(chatting.engine.prompts) == 1
    assert deltas[-1].finish is not None
    assert sum(len(delta.tokens) for delta in deltas) == deltas[-1].finish.generated_tokens


async def test_where_calls_are_not_heard_every_answer_has_the_form(model_dir: Path) -> None:
    (model_dir / "chat_template.jinja").write_text("{{ messages[0].content }}")
    served = await Served(model_dir).load()
    sampling = SamplingParams(max_new_tokens=100, grammar=FORM)
    await served.plain(GenerateRequest(prompt=chat("hi", tool_use=ToolUse(tools=TOOLS)), sampling=sampling))
    assert [given.grammar for given in served.engine.sampling.values()] == [FORM]


async def test_a_bias_is_for_tokens_that_there_are(served: Served) -> None:
    task, _ = served.call("openai", "completion", {"prompt": "hi", "logit_bias": {"5": 1, "1000": 1}})
    with pytest.raises(
        ParameterError, match=r"^logit_bias: token id 1000, expected 0 to 256 \(the vocabulary\)$"
    ) as caught:
        await task
    assert caught.value.field == "logit_bias"


async def test_a_forced_call_and_another_form(chatting: Served) -> None:
    asked = GenerateRequest(
        prompt=chat("x", tool_use=ToolUse(tools=TOOLS, choice="required")),
        sampling=SamplingParams(max_new_tokens=1, grammar=Grammar("json_object")),
    )
    with pytest.raises(ParameterError, match="tool_choice"):
        await chatting.plain(asked)


async def test_the_parser_can_be_chosen(model_dir: Path) -> None:
    (model_dir / "chat_template.jinja").write_text("{{ messages[0].content }}")
    served = await Served(model_dir).load(tool_call_parser="pythonic")
    served.engine.reply_to = lambda prompt: "[now()]"
    deltas = await served.plain(request(chat("x", tool_use=ToolUse(tools=TOOLS))))
    assert calls(deltas) == [(0, "now", "{}")]


async def test_an_unknown_parser_is_told_at_load(model_dir: Path) -> None:
    for name, message in (("nope", r"option\.tool_call_parser 'nope' is not known"), ("json:Gone", "has no 'Gone'")):
        served = Served(model_dir)
        with pytest.raises((ConfigError, ModelLoadError), match=message):
            await served.load(tool_call_parser=name)
    assert served.engine.closed  # it was opened: to find that nothing has the name takes an import


THINK = (("<think>",), ("</think>",))


def reasoning(messages: str = "hi", **options: Any) -> GenerateRequest:
    prompt = chat(messages, **options)
    sampling = SamplingParams(max_new_tokens=100, grammar=FORM)
    return GenerateRequest(prompt=prompt, sampling=sampling, splits_reasoning=True)


async def test_a_grammar_is_for_what_follows_the_reasoning(model_dir: Path) -> None:
    (model_dir / "chat_template.jinja").write_text("{{ messages[0].content }}{% if opened %}<think>{% endif %}")
    served = await Served(model_dir).load(reasoning_parser="qwen3")
    await served.plain(reasoning())
    await served.plain(reasoning(variables={"opened": True}))
    await served.plain(reasoning("x</think>"))
    await served.plain(reasoning(tool_use=ToolUse(tools=(), choice="none")))
    plain = GenerateRequest(prompt=chat("hi"), sampling=SamplingParams(max_new_tokens=100, grammar=FORM))
    await served.plain(plain)
    free_texts = [given.grammar.before if given.grammar else "none" for given in served.engine.sampling.values()]
    maybe = FreeText(*THINK, begun=False)
    assert free_texts == [maybe, FreeText(*THINK, begun=True), None, maybe, None]


async def test_a_forced_call_follows_the_reasoning(model_dir: Path) -> None:
    (model_dir / "chat_template.jinja").write_text("{{ messages[0].content }}{# tools #}")
    served = await Served(model_dir).load(reasoning_parser="deepseek_r1")
    served.engine.reply_to = lambda prompt: 'Hm {"name"</think>\n[{"name": "now", "arguments": {}}]'
    asked = GenerateRequest(
        prompt=chat("x", tool_use=ToolUse(tools=TOOLS, choice="required")),
        sampling=SamplingParams(max_new_tokens=100),
        splits_reasoning=True,
    )
    deltas = await served.plain(asked)
    assert calls(deltas) == [(0, "now", "{}")]
    assert "".join(delta.reasoning for delta in deltas) == 'Hm {"name"' and not any(delta.text for delta in deltas)
    (given,) = served.engine.sampling.values()
    assert given.grammar is not None and given.grammar.before == FreeText(*THINK, begun=True)


@pytest.mark.parametrize("stream", [True, False])
async def test_after_its_reasoning_an_answer_with_tools_has_the_form(chatting_reasoner: Served, stream: bool) -> None:
    served = chatting_reasoner
    served.engine.reply_to = lambda prompt: "<think>Hm</think> Yes"
    deltas = await served.plain(reasoning(tool_use=ToolUse(tools=TOOLS)), stream=stream)
    assert [given.grammar for given in served.engine.sampling.values()] == [
        None,
        msgspec.structs.replace(FORM, before=FreeText(*THINK, begun=False)),
    ]
    assert ("".join(d.reasoning for d in deltas), "".join(d.text for d in deltas)) == ("Hm", "Yes")
    assert deltas[-1].finish is not None and deltas[-1].finish.reasoning_tokens == len("<think>Hm</think>")


async def test_an_answer_that_ends_within_its_reasoning_needs_no_form(chatting_reasoner: Served) -> None:
    served = chatting_reasoner
    served.engine.reply_to = lambda prompt: "<think>Hm"
    deltas = await served.plain(reasoning(tool_use=ToolUse(tools=TOOLS)))
    assert len(served.engine.prompts) == 1
    assert "".join(delta.reasoning for delta in deltas) == "Hm"


@pytest.fixture
async def chatting_reasoner(model_dir: Path) -> Served:
    (model_dir / "chat_template.jinja").write_text("{{ messages[0].content }}{# <tool_call> </think> #}")
    return await Served(model_dir).load(enable_reasoning=True)


async def test_marks_that_are_special_tokens_are_seen(model_dir: Path) -> None:
    tokenizer = type(BYTES).from_str(BYTES.to_str())
    tokenizer.add_special_tokens(["[THINK]", "[/THINK]", "[OTHER]"])
    tokenizer.save(str(model_dir / "tokenizer.json"))
    config = {"eos_token": EOS, "chat_template": "{{ messages[0].content }}"}
    (model_dir / "tokenizer_config.json").write_text(json.dumps(config))
    served = await Served(model_dir).load(reasoning_parser="mistral")
    begin, end, other = (tokenizer.get_vocab()[name] for name in ("[THINK]", "[/THINK]", "[OTHER]"))
    served.engine.script_of = lambda prompt: [begin, *ids("Hm"), other, end, other, *ids("Yes")]
    deltas = await served.plain(msgspec.structs.replace(request(chat("x")), splits_reasoning=True))
    assert ("".join(d.reasoning for d in deltas), "".join(d.text for d in deltas)) == ("Hm", "Yes")


async def test_an_unknown_reasoning_parser_is_told_at_load(model_dir: Path) -> None:
    for options, message in (
        ({"reasoning_parser": "nope"}, r"option\.reasoning_parser 'nope' is not known; expected one of cohere"),
        ({"enable_reasoning": True}, "does not tell how reasoning is marked"),
    ):
        with pytest.raises(ModelLoadError, match=message):
            await Served(model_dir).load(**options)


async def test_special_tokens_of_the_syntax_are_seen(model_dir: Path) -> None:
    tokenizer = type(BYTES).from_str(BYTES.to_str())
    tokenizer.add_special_tokens(["[TOOL_CALLS]"])
    tokenizer.save(str(model_dir / "tokenizer.json"))
    config = {"eos_token": EOS, "chat_template": "[TOOL_CALLS]{{ messages[0].content }}"}
    (model_dir / "tokenizer_config.json").write_text(json.dumps(config))
    served = await Served(model_dir).load()
    marker = tokenizer.get_vocab()["[TOOL_CALLS]"]
    text = ids('[{"name": "now", "arguments": {}}]')
    served.engine.script_of = lambda prompt: [marker, *text]
    deltas = await served.plain(request(chat("x", tool_use=ToolUse(tools=TOOLS))))
    assert calls(deltas) == [(0, "now", "{}")]
    assert "".join(delta.text for delta in deltas) == ""
