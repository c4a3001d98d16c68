"""Templates that would go on for ever, or fill the memory, are stopped; all others render as before."""

from __future__ import annotations

import jinja2
import pytest

from djl_python.core.errors import ModelLoadError, PayloadError
from djl_python.text import template_environment
from djl_python.text.chat import ChatTemplate, SlowTemplateError
from djl_python.text.template_environment import TemplateTimeoutError, template_of, time_limit

MANY = "range(99999)"
ENDLESS = {
    "loops": f"{{% for i in {MANY} %}}{{% for j in {MANY} %}}{{% endfor %}}{{% endfor %}}",
    "loops that tell": f"{{% for i in {MANY} %}}{{% for j in {MANY} %}}{{{{ loop.last }}}}{{% endfor %}}{{% endfor %}}",
    "filtered loops": f"{{% for i in {MANY} %}}{{% for j in {MANY} if j < 0 %}}x{{% endfor %}}{{% endfor %}}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "recursion": "{% for x in [60] recursive %}{% if x %}{{ loop([x - 1, x - 1]) }}{% endif %}{% endfor %}",
}
LARGE = {
    "a power": "{{ 9 ** 99999999 }}",
    "a repeated text": "{{ 'x' * 10000000000 }}",
    "a repeated list": "{{ (99999999999 * [1]) | length }}",
    "a sum": "{% set n = namespace(x='x') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "a join": "{% set n = namespace(x='x') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
}


@pytest.mark.parametrize("source", ENDLESS.values(), ids=ENDLESS)
def test_an_endless_template_is_stopped(source: str) -> None:
    with pytest.raises(TemplateTimeoutError), time_limit(0.01):
        template_of(source).render()


@pytest.mark.parametrize("source", LARGE.values(), ids=LARGE)
def test_values_have_a_size(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_environment, "MOST_CHARS", 1 << 16)
    with pytest.raises(jinja2.TemplateError, match="a value is too large"):
        template_of(source).render()


def test_the_limit_is_that_of_one_rendering() -> None:
    template = template_of("{% for i in range(200) %}{{ i }}{% endfor %}")
    with time_limit(60):
        with pytest.raises(TemplateTimeoutError), time_limit(-1):
            template.render()
        assert template.render().endswith("199")
    assert template.render().endswith("199")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for x in [3, 4] %}{{ loop.index }}/{{ loop.length }}{{ loop.last }} {% endfor %}", "1/2False 2/2True "),
        ("{% for x in [1, 2, 3] if x != 2 %}{{ x }}{{ loop.length }}{% endfor %}", "1232"),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}", "a1"),
        ("{% for x in missing %}x{% else %}none{% endfor %}", "none"),
        ("{% for x in [[1], [2]] %}{% for y in x %}{{ y }}{{ loop.revindex }}{% endfor %}{% endfor %}", "1121"),
        ("{% for x in [{'c': [{'c': []}]}] recursive %}({{ loop(x.c) }}){% endfor %}", "(())"),
        ("{% for x in 'ab' %}{{ x }}{{ loop.nextitem }}{% endfor %}", "abb"),
        ("{% for x in [1, 2, 3] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}", "1"),
        (
            "{{ 'a' ~ 1 ~ none }}{{ 'a' + 'b' }}{{ 2 ** 5 }}{{ '=' * 3 }}{{ [1] * 2 }}{{ 1 + 2 }}",
            "a1Noneab32===[1, 1]3",
        ),
    ],
)
def test_all_else_renders_as_it_does_in_jinja2(source: str, text: str) -> None:
    assert template_of(source).render() == text


def test_a_template_that_is_endless_whatever_it_gets_is_refused_at_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("djl_python.text.chat.TRIAL_S", 0.01)
    with pytest.raises(ModelLoadError, match=r"the chat template takes more than 0\.01 s for a few words"):
        ChatTemplate(ENDLESS["loops"])


def test_a_template_that_is_endless_on_a_chat_refuses_it() -> None:
    endless = "{% if messages[0].content == 'go' %}" + ENDLESS["loops"] + "{% endif %}"
    template = ChatTemplate(endless)
    messages = [{"role": "user", "content": "go"}]
    with pytest.raises(SlowTemplateError, match=r"takes more than 0\.01 s on these messages") as caught:
        template.render(messages, limit_s=0.01)
    assert (caught.value.field, caught.value.status) == ("messages", PayloadError.status)
