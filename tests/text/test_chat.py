"""Chat templates render what transformers renders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from djl_python.core.errors import ModelLoadError, PayloadError
from djl_python.core.types import Chat, ToolUse
from djl_python.text.chat import ChatTemplate, ChatTemplates
from tests.checkpoints import since

Render = Callable[..., str]

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}

CHATML = """{%- for message in messages %}
    {%- if loop.first and message['role'] != 'system' %}
        {{- '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}"""

LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
    "{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if loop.index0 == 0 and system_message != false %}"
    "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)

TOOLS = """{{ bos_token }}{%- set ns = namespace(last=-1, found=false) %}
{%- if tools %}
<tools>
{% for tool in tools %}
{{ tool | tojson }}
{% endfor %}
{{ tools | tojson(indent=2) }}
</tools>
{% endif %}
{%- for message in messages %}
    {%- if message.role == 'skip' %}{% continue %}{% endif %}
    {%- if message.tool_calls is defined and message.tool_calls %}
        {%- for call in message.tool_calls -%}
            {{ call.function.name }}({{ call.function.arguments | tojson }}){% endfor -%}
    {%- elif message.content is string %}{{ message.content | trim }}
    {%- else %}{% for part in message.content %}{{ part.text if part.type == 'text' else '<image>' }}{% endfor %}
    {%- endif %}
    {%- if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}
    {%- set ns.last = loop.index0 %}
    {%- generation %}[{{ ns.last }}]{% endgeneration %}
    {%- if message.role == 'stop' %}{% break %}{% endif %}
{%- endfor %}
{% macro end(mark) %}{{ mark ~ eos_token }}{% endmacro %}{{ end('!') if not add_generation_prompt else end('>') }}
{{ enable_thinking | default('unset') }} {{ dict(a=1) | items | list }} {{ documents }}"""

TALK = [
    {"role": "user", "content": "  What is <b>deep</b> learning? “ü” "},
    {"role": "assistant", "content": "A field."},
    {"role": "user", "content": "More"},
]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "title": "é<&>"}}}
CASES: dict[str, tuple[str, list[dict[str, Any]], dict[str, Any]]] = {
    "chatml": (CHATML, TALK, {}),
    "chatml-system": (CHATML, [{"role": "system", "content": "Be brief."}, *TALK], {}),
    "llama2": (LLAMA2, TALK, {}),
    "llama2-system": (LLAMA2, [{"role": "system", "content": "Be brief."}, *TALK], {"add_generation_prompt": False}),
    "tools": (TOOLS, TALK, {"tools": [TOOL]}),
    "no-tools": (TOOLS, TALK, {"add_generation_prompt": False}),
    "parts": (
        TOOLS,
        [
            {"role": "user", "content": [{"type": "text", "text": "look:"}, {"type": "image"}]},
            {"role": "skip", "content": "not this"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"function": {"name": "f", "arguments": {"x": [1, 2.5, None, True]}}}],
                "reasoning": "because",
            },
            {"role": "stop", "content": "end"},
            {"role": "user", "content": "not this"},
        ],
        {"variables": {"enable_thinking": False, "documents": [{"title": "t", "text": "x"}]}},
    ),
}


@pytest.fixture(scope="module")
def reference() -> Render:
    from transformers.utils import chat_template_utils as utils  # takes seconds

    def render(
        source: str,
        messages: list[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        variables: dict[str, Any] | None = None,
        **options: Any,
    ) -> str:
        (text,), _ = utils.render_jinja_template(
            [messages],
            chat_template=source,
            add_generation_prompt=add_generation_prompt,
            **options,
            **(variables or {}),
            **SPECIAL,
        )
        return str(text)

    return render


@pytest.mark.parametrize("case", [pytest.param(case, marks=since("5.22") if case == "parts" else ()) for case in CASES])
def test_prompts_equal_transformers(case: str, reference: Render) -> None:
    source, messages, options = CASES[case]
    text = ChatTemplate(source, SPECIAL).render(messages, **options)
    assert text
    assert text == reference(source, messages, **options)


@pytest.mark.parametrize("source", [CHATML, LLAMA2, TOOLS], ids=["chatml", "llama2", "tools"])
def test_the_last_message_can_be_continued(source: str, reference: Render) -> None:
    for content in ("It is ", "It is"):
        messages = [TALK[0], {"role": "assistant", "content": content}]
        options: dict[str, Any] = {"add_generation_prompt": False, "continue_final_message": True}
        text = ChatTemplate(source, SPECIAL).render(messages, **options)
        assert text.rstrip().endswith("It is")
        assert text == reference(source, messages, **options)
        assert messages[1]["content"] == content


def test_messages_that_can_not_be_continued_are_refused() -> None:
    template = ChatTemplate(CHATML)
    for messages in ([], [{"role": "user", "content": None}]):
        with pytest.raises(PayloadError, match="no text to continue"):
            template.render(messages, continue_final_message=True)
    with pytest.raises(PayloadError, match="leaves the last message out"):
        ChatTemplate("nothing").render(TALK, continue_final_message=True)


def test_a_template_may_refuse() -> None:
    with pytest.raises(PayloadError, match="refuses these messages: Conversation roles must alternate"):
        ChatTemplate(LLAMA2, SPECIAL).render([TALK[0], TALK[0]])


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content + 5 }}",
        "{{ messages[0].content.split('') }}",
        "{{ messages[0].content % {} }}",
        "{{ 1 // (messages | length * 0) }}",
        "{{ tools | tojson }}",
        "{{ tools[0].function.parameters.properties | dictsort }}",
    ],
)
def test_a_template_may_fail_on_what_it_was_not_written_for(source: str) -> None:
    properties: list[Any] = []
    for _ in range(100_000):
        properties = [properties]
    tools = [{"function": {"name": "f", "parameters": {"properties": properties}}}]
    with pytest.raises(PayloadError, match="fails on these messages"):
        ChatTemplate(source).render([{"role": "user", "content": "%(x)s"}], tools=tools)


def test_a_template_sees_no_python() -> None:
    for source in (
        "{{ messages.__class__ }}{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% set ns = namespace(_x=1) %}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
    ):
        with pytest.raises(PayloadError):
            ChatTemplate(source).render(TALK)


def test_a_broken_template_is_named_at_load() -> None:
    with pytest.raises(ModelLoadError, match="line 2"):
        ChatTemplate("fine\n{% for %}")


def test_templates_know_todays_date() -> None:
    assert len(ChatTemplate("{{ strftime_now('%Y-%m-%d') }}").render(TALK)) == len("2024-01-01")


# ------------------------------------------------------------------------------------------------ a model's templates

USER = ({"role": "user", "content": "hi"},)
TOOL = {"type": "function", "function": {"name": "now"}}


def test_a_template_is_the_default_one_or_the_one_for_tools() -> None:
    names = "{{ messages[0].content }}-{{ tools | length if tools else 'none' }}"
    templates = ChatTemplates({"default": f"default {names}", "tool_use": f"tool_use {names}", "rag": f"rag {names}"})
    use = ToolUse(tools=(TOOL,))
    assert templates.render(Chat(messages=USER)) == "default hi-none"
    assert templates.render(Chat(messages=USER, tool_use=use)) == "tool_use hi-1"
    hidden = ToolUse(tools=(TOOL,), choice="none")
    assert templates.render(Chat(messages=USER, tool_use=hidden)) == "default hi-none"
    assert ChatTemplates({"only": names}).render(Chat(messages=USER)) == "hi-none"
    assert ChatTemplates({"default": names, "rag": ""}).render(Chat(messages=USER, tool_use=use)) == "hi-1"
    with pytest.raises(PayloadError, match="no default chat template, only rag, tool_use"):
        ChatTemplates({"tool_use": names, "rag": names}).render(Chat(messages=USER))


def test_templates_get_variables_and_the_open_end() -> None:
    templates = ChatTemplates({"default": "{{ mood }}:{{ messages[-1].content }}{{ '>' if add_generation_prompt }}"})
    assert templates.render(Chat(messages=USER, variables={"mood": "good"})) == "good:hi>"
    assert templates.render(Chat(messages=USER, continue_final=True)) == ":hi"
    assert templates.render(Chat(messages=USER, add_generation_prompt=False)) == ":hi"


def test_a_broken_template_costs_its_chats_only() -> None:
    templates = ChatTemplates({"default": "{% if %}", "tool_use": "fine"})
    assert len(templates.broken) == 1
    assert templates.render(Chat(messages=USER, tool_use=ToolUse(tools=(TOOL,)))) == "fine"
    with pytest.raises(PayloadError, match="the chat template is not valid: line 1"):
        templates.render(Chat(messages=USER))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": [1]}', '{"a": [1]}'),
        ({"a": 1}, '{"a": 1}'),
        ("", "{}"),
        ("not json", '"not json"'),
        (r'{"a": "\ud800"}', '{"a": "\N{REPLACEMENT CHARACTER}"}'),
    ],
)
def test_arguments_come_back_as_objects(arguments: object, expected: str) -> None:
    template = ChatTemplate("{{ messages[0].tool_calls[0].function.arguments | tojson }}")
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    assert template.render([{"role": "assistant", "content": "", "tool_calls": [call]}]) == expected


@pytest.mark.parametrize(
    ("calls_if", "said", "expected"),
    [
        ("message.tool_calls", "", 'hi[f|{"a": 1}]'),
        ("message.content is none", "", 'hi[f|{"a": 1}]'),
        ("message.tool_calls and message.content is not none", "So:", 'hi[f|{"a": 1}]So:'),
        ("message.content is none", "So:", "hiSo:"),
        ("message.content is none", "no calls", "hino calls"),
    ],
)
def test_templates_like_deepseeks_get_calls_as_they_read_them(calls_if: str, said: str, expected: str) -> None:
    """They add a text to the arguments, and some look for calls only where content is null."""
    template = ChatTemplate(
        f"{{% for message in messages %}}{{% if message.role == 'assistant' and {calls_if} %}}"
        "{% for call in message.tool_calls %}{{ '[' + call.function.name + '|' + call.function.arguments + ']' }}"
        "{% endfor %}{% endif %}{{ message.content or '' }}{% endfor %}"
    )
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    message = {"role": "assistant", "content": said} | ({} if said == "no calls" else {"tool_calls": [call]})
    assert template.render([*USER, message]) == expected


def test_arguments_are_never_written_as_python_writes_them() -> None:
    template = ChatTemplate("{{ messages[-1].tool_calls[0].function.arguments }}")
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": null}'}}
    assert template.render([*USER, {"role": "assistant", "content": "", "tool_calls": [call]}]) == '{"a": null}'


def test_arguments_that_are_nested_too_deeply_are_refused() -> None:
    call = {"function": {"name": "f", "arguments": "[" * 100_000 + "]" * 100_000}}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    field = "messages[1].tool_calls[0].function.arguments"
    with pytest.raises(PayloadError) as caught:
        ChatTemplate("").render([*USER, message])
    assert (caught.value.message, caught.value.field) == (f"{field}: nested too deeply", field)


def test_a_template_that_reads_parts_only_gets_parts() -> None:
    """Models that take images may have such templates; a plain text would be left out."""
    parts = (
        "{% for message in messages %}{{ message.role }}:{% for part in message.content %}"
        "{% if part.type == 'text' %}{{ part.text }}{% else %}<image>{% endif %}{% endfor %};{% endfor %}"
    )
    seen = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what?"}]}]
    template = ChatTemplate(parts)
    assert template.render(USER) == "user:hi;"
    assert template.render(seen) == "user:<image>what?;"
    assert template.render([*USER, {"role": "assistant", "content": "we"}], continue_final_message=True) == (
        "user:hi;assistant:we"
    )
    shy = "{% if messages | length < 2 %}{{ raise_exception('two') }}{% endif %}{{ messages[1].content }}"
    assert ChatTemplate(shy).render([*USER, *USER]) == "hi"
    either = "{{ messages[0].content if messages[0].content is string else 'parts' }}"
    assert ChatTemplate(either).render(USER) == "hi"


def test_a_template_that_reads_a_messages_tools_gets_them_there() -> None:
    """Phi-4-mini's reads no variable `tools`, but the system message's, as text."""
    phi = (
        "{% for message in messages %}{{ message['role'] }}:{{ message['content'] }}"
        "{% if message['role'] == 'system' and 'tools' in message %}<|tool|>{{ message['tools'] }}<|/tool|>{% endif %};"
        "{% endfor %}"
    )
    shown = '<|tool|>[{"name": "now", "description": "größe"}]<|/tool|>'
    tools = [{"type": "function", "function": {"name": "now", "description": "größe"}}]
    template = ChatTemplate(phi)
    assert template.render(USER) == "user:hi;"
    assert template.render(USER, tools=tools) == f"system:{shown};user:hi;"
    assert template.render([{"role": "system", "content": "be"}, *USER], tools=tools) == f"system:be{shown};user:hi;"
    variable = "{{ tools | length if tools }}{{ messages | length }}"
    assert ChatTemplate(variable).render(USER, tools=tools) == "11"
    both = "{{ messages | tojson }}{{ tools | tojson if tools }}"
    assert ChatTemplate(both).render(USER, tools=tools).count("now") == 1


NAMED = "{% for message in messages %}{{ message.role }}:{{ message.content }};{% endfor %}"
#: As Qwen's: what has another role is left out.
STRICT = (
    "{% for message in messages %}{% if message.role in ['user', 'system', 'assistant', 'tool'] %}"
    "{{ message.role }}:{{ message.content }};{% elif message.role.startswith('document') %}"
    "<{{ message.role }}>{{ message.content }}{% endif %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (NAMED, "system:S;tool:T;"),
        (NAMED + "{% if messages[0].role == 'developer' %}!{% endif %}", "developer:S;tool:T;!"),
        (NAMED + "{% if messages[1]['role'] in ('tool', 'function') %}!{% endif %}", "system:S;function:T;!"),
        (NAMED + "{% set function = 'function' %}{{ {'role': 'developer'} | length }}", "system:S;tool:T;1"),
    ],
)
def test_roles_have_the_names_that_the_template_knows(source: str, expected: str) -> None:
    given = [{"role": "developer", "content": "S"}, {"role": "function", "name": "f", "content": "T"}]
    assert ChatTemplate(source).render(given) == expected


def test_a_role_of_the_models_own_goes_to_its_template() -> None:
    given = [{"role": "document 1", "content": "D"}, *USER]
    assert ChatTemplate(NAMED).render(given) == "document 1:D;user:hi;"
    assert ChatTemplate(STRICT).render(given) == "<document 1>Duser:hi;"


def test_a_role_that_a_template_refuses_is_refused_in_its_words() -> None:
    picky = NAMED.replace(
        "}}:", "}}{% if message.role != 'user' %}{{ raise_exception('no ' + message.role) }}{% endif %}:"
    )
    with pytest.raises(PayloadError) as caught:
        ChatTemplate(picky).render([*USER, {"role": "robot", "content": "x"}])
    assert caught.value.message == "the chat template refuses these messages: no robot"


def test_a_message_that_a_template_would_leave_out_is_refused() -> None:
    for _ in range(2):
        with pytest.raises(PayloadError) as caught:
            ChatTemplate(STRICT).render([*USER, {"role": "robot", "content": "x"}])
        assert caught.value.field == "messages[1].role"
        assert caught.value.message.endswith('this model\'s chat template leaves out messages of role "robot"')
