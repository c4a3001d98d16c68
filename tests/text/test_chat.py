"""Chat templates render what transformers renders."""

from __future__ import annotations

import pytest

from djl_python.errors import ModelLoadError, PayloadError
from djl_python.text.chat import ChatTemplate

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
CASES = {
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
        {"variables": {"enable_thinking": False}, "documents": [{"title": "t", "text": "x"}]},
    ),
}


@pytest.fixture(scope="module")
def reference():
    utils = pytest.importorskip("transformers.utils.chat_template_utils")

    def render(source, messages, *, add_generation_prompt=True, variables=None, **options):
        (text,), _ = utils.render_jinja_template(
            [messages],
            chat_template=source,
            add_generation_prompt=add_generation_prompt,
            **options,
            **(variables or {}),
            **SPECIAL,
        )
        return text

    return render


@pytest.mark.parametrize("case", CASES)
def test_equals_transformers(case: str, reference) -> None:
    source, messages, options = CASES[case]
    text = ChatTemplate(source, SPECIAL).render(messages, **options)
    assert text
    assert text == reference(source, messages, **options)


@pytest.mark.parametrize("source", [CHATML, LLAMA2, TOOLS], ids=["chatml", "llama2", "tools"])
def test_the_last_message_can_be_continued(source: str, reference) -> None:
    for content in ("It is ", "It is"):
        messages = [TALK[0], {"role": "assistant", "content": content}]
        options = {"add_generation_prompt": False, "continue_final_message": True}
        text = ChatTemplate(source, SPECIAL).render(messages, **options)
        assert text.rstrip().endswith("It is")
        assert text == reference(source, messages, **options)
        assert messages[1]["content"] == content


def test_messages_that_can_not_be_continued() -> None:
    template = ChatTemplate(CHATML)
    for messages in ([], [{"role": "user", "content": None}]):
        with pytest.raises(PayloadError, match="no text to continue"):
            template.render(messages, continue_final_message=True)
    with pytest.raises(PayloadError, match="leaves the last message out"):
        ChatTemplate("nothing").render(TALK, continue_final_message=True)


def test_a_template_may_refuse() -> None:
    with pytest.raises(PayloadError, match="refuses these messages: Conversation roles must alternate"):
        ChatTemplate(LLAMA2, SPECIAL).render([TALK[0], TALK[0]])
    with pytest.raises(PayloadError, match="fails on these messages"):
        ChatTemplate(CHATML).render([{"role": "user", "content": 5}])


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


def test_today() -> None:
    assert len(ChatTemplate("{{ strftime_now('%Y-%m-%d') }}").render(TALK)) == len("2024-01-01")
