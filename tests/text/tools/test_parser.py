"""Tool calls are heard in every syntax, however the text is cut; what only looks like one is said."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import jsonschema
import pytest

from djl_python.core.errors import ConfigError
from djl_python.core.types import FinishReason, ToolUse
from djl_python.text.tools.json_calls import ForcedParser
from djl_python.text.tools.parser import (
    TOOL_PARSERS,
    ParsedText,
    ToolParser,
    forced_calls,
    syntax_of,
    tool_parser_class,
)


def tool(name: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
    function = {"name": name} if parameters is None else {"name": name, "parameters": parameters}
    return {"type": "function", "function": function}


CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
#: A tool whose arguments have every type that texts may stand for.
TYPED = {
    "properties": {
        "n": {"type": "integer"},
        "r": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "b": {"type": "boolean"},
        "l": {"type": "array"},
        "o": {"type": "object"},
        "m": {"type": ["string", "null"]},
        "e": {"enum": [1, 2]},
        "s": {"const": "7"},
    }
}
USE = ToolUse(tools=(tool("weather", CITY), tool("now"), tool("get-it"), tool("typed", TYPED)))


def hear(
    parser: ToolParser, pieces: list[str], end: FinishReason = FinishReason.EOS
) -> tuple[str, list[tuple[str, str]], list[str]]:
    """(content, (name, arguments) of each call, ids); checks the order in which a call's pieces come."""
    heard: list[ParsedText] = [parser.feed(piece) for piece in pieces]
    heard.append(parser.finish(end))
    names: list[str] = []
    ids: list[str] = []
    arguments: list[str] = []
    for call in (call for one in heard for call in one.calls):
        if call.name:
            assert call.index == len(names) and call.id
            names.append(call.name)
            ids.append(call.id)
            arguments.append(call.arguments)
        else:
            assert call.index == len(names) - 1 and not call.id
            arguments[-1] += call.arguments
    assert len(set(ids)) == len(ids)
    return "".join(one.content for one in heard), list(zip(names, arguments, strict=True)), ids


def cuts(text: str) -> list[list[str]]:
    """The text whole, character by character, and in random pieces."""
    draw = random.Random(len(text))
    divided = [[text], list(text)]
    for _ in range(4):
        at = sorted(draw.sample(range(len(text) + 1), min(5, len(text))))
        divided.append([text[i:j] for i, j in zip([0, *at], [*at, len(text)], strict=True)])
    return divided


CALL = '{"name": "weather", "arguments": {"city": "São \\"P\\" }]"}}'
ARGUMENTS = '{"city": "São \\"P\\" }]"}'
LLAMA = CALL.replace("arguments", "parameters")

#: (parser, text, content, calls)
HEARD = [
    ("hermes", f"<tool_call>\n{CALL}\n</tool_call>", "", [("weather", ARGUMENTS)]),
    ("hermes", f"Let me see.\n<tool_call>{CALL}</tool_call>", "Let me see.", [("weather", ARGUMENTS)]),
    (
        "qwen",
        f'<tool_call>\n{CALL}\n</tool_call>\n<tool_call>\n{{"name": "now", "arguments": {{}}}}\n</tool_call>\n',
        "",
        [("weather", ARGUMENTS), ("now", "{}")],
    ),
    ("hermes", f"<tool_call>{CALL}</tool_call> Done. ", " Done.", [("weather", ARGUMENTS)]),
    ("hermes", f"<tool_call>{CALL}", "", [("weather", ARGUMENTS)]),
    ("hermes", f"<tool_call>\n{CALL}\n{CALL}\n</tool_call> Done.", " Done.", [("weather", ARGUMENTS)] * 2),
    ("hermes", f'<tool_call>{CALL} {{"x"}}</tool_call>', '{"x"}', [("weather", ARGUMENTS)]),
    ("hermes", f"<tool_call>\n{CALL}}}\n</tool_call>\nDone.", "\nDone.", [("weather", ARGUMENTS)]),  # a brace too many
    ("hermes", f"<tool_call>{CALL}</tool_call></tool_call>", "", [("weather", ARGUMENTS)]),
    ("hermes", f"<tool_call>{CALL}\n</tool_c", "", [("weather", ARGUMENTS)]),
    ("hermes", '<tool_call>{"arguments": {"city": "x"}, "name": "weather"}', "", [("weather", '{"city": "x"}')]),
    ("hermes", '<tool_call>{"name": "weather", "arguments": "{\\"city\\": 1}"}', "", [("weather", '{"city": 1}')]),
    ("hermes", '<tool_call>{"name": "now"}</tool_call>', "", [("now", "{}")]),
    ("hermes", '<tool_call>{"name": "now", "arguments": null}</tool_call>', "", [("now", "{}")]),
    ("hermes", '<tool_call>{"name": "now", "arguments": ""}</tool_call>', "", [("now", "{}")]),
    (
        "hermes",
        '<tool_call>{"name": "weather", "arguments": {"x": 1}, "parameters": {"y": 2}, "arguments": "{}"}</tool_call>',
        "",
        [("weather", '{"x": 1}')],
    ),
    (
        "hermes",
        '<tool_call>{"arguments": null, "name": "weather", "parameters": {"y": 2}}',
        "",
        [("weather", '{"y": 2}')],
    ),
    # Half a character.
    (
        "hermes",
        '<tool_call>{"name": "now\\ud800", "arguments": "{\\"x\\": \\"\\ud800\\"}"}',
        "",
        [("now\N{REPLACEMENT CHARACTER}", '{"x": "\N{REPLACEMENT CHARACTER}"}')],
    ),
    ("hermes", '<tool_call>{"name": "now", "arguments": {"x": "\\ud800"}}', "", [("now", '{"x": "\\ud800"}')]),
    ("hermes", '<tool_call>{"id": 7, "x": [{"a": "}"}], "name": "now", "arguments": {}}', "", [("now", "{}")]),
    ("hermes", '<tool_call>{"name": "other", "arguments": {}}</tool_call>', "", [("other", "{}")]),
    ("hermes", '<tool_call>{"name": "now", "arguments": " "}</tool_call>', "", [("now", "{}")]),
    ("hermes", '<tool_call>{"name": "now", "arguments": "{\n}"}</tool_call>', "", [("now", "{\n}")]),
    ("hermes", '<tool_call>{"name": "now", "arguments": 15 }</tool_call>', "", [("now", "15")]),
    ("hermes", '<tool_call> { "x" : 5 , "name" : "now" , }</tool_call>', "", [("now", "{}")]),
    # What the model did not end.
    ("hermes", '<tool_call>{"name": "weather", "arguments": {"city": "Pa', "", [("weather", '{"city": "Pa"}')]),
    # Almost JSON: raw control characters and lone backslashes in strings, Python's words, a comma too many.
    (
        "hermes",
        '<tool_call>{"name": "now", "arguments": {"x": "a\nb\tc\x00", "y": "C:\\Users\\d", '
        '"z": [True, None,],}}</tool_call>',
        "",
        [("now", r'{"x": "a\nb\tc\u0000", "y": "C:\\Users\\d", "z": [true, null]}')],
    ),
    (
        "hermes",
        '<tool_call>{"name": "now", "arguments": {"x": "1" "y": 2}}\n</tool_call> Done.',
        " Done.",
        [("now", '{"x": "1" ,"y": 2}')],
    ),
    ("hermes", '<tool_call>{"name": "now", "arguments": {"x": 1</tool_call> Done.', " Done.", [("now", '{"x": 1}')]),
    ("hermes", '<tool_call>{"name": "now", "arguments": "so be it"}', "", [("now", '"so be it"')]),
    (
        "hermes",
        r"""<tool_call>{"name": "now", "arguments": "{'p': \"C:\\Users\"}"}""",
        "",
        [("now", r'{"p": "C:\\Users"}')],
    ),
    # A call whose object was not closed: by then it may have been passed on.
    ("hermes", f"<tool_call>{CALL[:-1]}</tool_call> Done.", " Done.", [("weather", ARGUMENTS)]),
    (
        "hermes",
        f"<tool_call>{CALL[:-1]}\n<tool_call>{CALL[:-1]} and more",
        "and more",
        [("weather", ARGUMENTS)] * 2,
    ),
    ("hermes", f'<tool_call>{CALL[:-1]}, "name": "now", "x": y}}', "", [("weather", ARGUMENTS)]),
    ("hermes", '<tool_call>{"name": "now", "arguments": oops}', '<tool_call>{"name": "now", "arguments": oops}', []),
    ("hermes", '<tool_call>{"arguments": {}, oops', '<tool_call>{"arguments": {}, oops', []),
    ("hermes", '<tool_call>{"name"=: "now"}', '<tool_call>{"name"=: "now"}', []),
    ("hermes", f"{'<tool_call>' * 3}{CALL}</tool_call>", "<tool_call>" * 2, [("weather", ARGUMENTS)]),
    ("llama3_json", f"{LLAMA[:-1]} is it", "is it", [("weather", ARGUMENTS)]),
    ("mistral", f"[TOOL_CALLS][{CALL[:-1]}]", "", [("weather", ARGUMENTS)]),
    ("mistral", f"[TOOL_CALLS][{CALL[:-1]}, {CALL}]", "", [("weather", ARGUMENTS)] * 2),
    ("mistral", f"[TOOL_CALLS][{CALL},{CALL}] [TOOL_CALLS][{CALL}]", "", [("weather", ARGUMENTS)] * 3),
    ("mistral", f"[TOOL_CALLS][{CALL}]{CALL} [TOOL", f"{CALL} [TOOL", [("weather", ARGUMENTS)]),
    ("mistral", f"[TOOL_CALLS][{CALL}, oops [TOOL", ", oops [TOOL", [("weather", ARGUMENTS)]),
    ("mistral", '[TOOL_CALLS][{"na', '[TOOL_CALLS][{"na', []),
    ("granite", f"<|tool_call|>[{CALL}]", "", [("weather", ARGUMENTS)]),
    (
        "granite",
        f"Let me see.\n<|tool_call|> [{CALL},\n {CALL}]\nSo.",
        "Let me see.\nSo.",
        [("weather", ARGUMENTS)] * 2,
    ),
    ("granite", f"<tool_call>[{CALL}]</tool_call>", "", [("weather", ARGUMENTS)]),
    ("granite", f"<|tool_call|>{CALL}, {CALL}<|/tool_call|>", "", [("weather", ARGUMENTS)] * 2),
    ("granite", f"<|tool_call|>{CALL} So.", " So.", [("weather", ARGUMENTS)]),
    ("granite", "<|tool_call|>now()", "<|tool_call|>now()", []),
    ("phi4_mini_json", f"<|tool_call|>[{CALL}]<|/tool_call|>", "", [("weather", ARGUMENTS)]),
    ("phi4_mini_json", f"So.\nfunctools[{CALL}, {CALL}]\nAnd?", "So.\nAnd?", [("weather", ARGUMENTS)] * 2),
    ("phi4_mini_json", f"<|tool_call|>{LLAMA}, {CALL}", "", [("weather", ARGUMENTS)] * 2),
    ("phi4_mini_json", "import functools\nfunctools[0]", "import functools\nfunctools[0]", []),
    (
        "lfm2",
        '<|tool_call_start|>[weather(city="a]b"), now()]<|tool_call_end|>Looking.',
        "Looking.",
        [("weather", '{"city": "a]b"}'), ("now", "{}")],
    ),
    ("lfm2", "<|tool_call_start|>[now()]<|tool_call_end|>", "", [("now", "{}")]),
    ("lfm2", f"<|tool_call_start|>[{CALL}, {LLAMA}]<|tool_call_end|>", "", [("weather", ARGUMENTS)] * 2),
    ("lfm2", "<|tool_call_start|>[now()]<|tool_call_end|>now<|tool_call_end|>", "now", [("now", "{}")]),
    ("lfm2", "<|tool_call_start|>now?<|tool_call_end|>", "<|tool_call_start|>now?<|tool_call_end|>", []),
    ("lfm2", "<|tool_call_start|>[]<|tool_call_end|>", "<|tool_call_start|>[]<|tool_call_end|>", []),
    (
        "olmo3",
        'Let me. <function_calls>\nweather(city="(a)\nb")\nnow(x=null)\n</function_calls>',
        "Let me.",
        [("weather", '{"city": "(a)\\nb"}'), ("now", '{"x": null}')],
    ),
    ("olmo3", "<function_calls>now()</function_calls>", "", [("now", "{}")]),
    ("olmo3", '<function_calls>now(x="f(1)\ng(2)")</function_calls>', "", [("now", '{"x": "f(1)\\ng(2)"}')]),
    (
        "olmo3",
        "<function_calls>now()\nand so on</function_calls>",
        "<function_calls>now()\nand so on</function_calls>",
        [],
    ),
    # Not calls.
    ("hermes", "  plain <tool_cal text <tool> \n", "  plain <tool_cal text <tool> \n", []),
    ("hermes", "ends with <tool_call", "ends with <tool_call", []),
    ("hermes", "<tool_call>none of your business</tool_call>", "<tool_call>none of your business</tool_call>", []),
    ("hermes", '<tool_call>{"city": 1}</tool_call>', '<tool_call>{"city": 1}</tool_call>', []),
    ("hermes", '<tool_call>{"name": 5, "arguments": {}}', '<tool_call>{"name": 5, "arguments": {}}', []),
    ("hermes", '<tool_call>{"name": "wea', '<tool_call>{"name": "wea', []),
    ("hermes", f"<tool_call>oops <tool_call>{CALL}</tool_call>", "<tool_call>oops", [("weather", ARGUMENTS)]),
    ("llama3_json", LLAMA, "", [("weather", ARGUMENTS)]),
    ("llama3_json", f"{LLAMA}}};", "", [("weather", ARGUMENTS)]),
    ("llama3_json", f"<|python_tag|>{LLAMA}", "", [("weather", ARGUMENTS)]),
    ("llama4_json", f"<|python_tag|>{LLAMA}", "", [("weather", ARGUMENTS)]),
    ("llama3_json", f"<|python_tag|>\n<|python_tag|>{LLAMA}", "", [("weather", ARGUMENTS)]),
    (
        "llama3_json",
        f'{LLAMA}; {{"type": "function", "name": "now", "parameters": {{}}}}',
        "",
        [("weather", ARGUMENTS), ("now", "{}")],
    ),
    ("llama3_json", f"I look.<|python_tag|>{LLAMA}", "I look.", [("weather", ARGUMENTS)]),
    ("llama3_json", '{"name": "Ann", "parameters": {}}', '{"name": "Ann", "parameters": {}}', []),
    ("llama3_json", '{"answer": [1, 2]}\n', '{"answer": [1, 2]}\n', []),
    ("llama3_json", "<b>text</b> {}", "<b>text</b> {}", []),
    ("llama3_json", "<|py", "<|py", []),
    ("mistral", f"[TOOL_CALLS] [{CALL}]", "", [("weather", ARGUMENTS)]),
    (
        "mistral",
        f'Yes. [TOOL_CALLS][{CALL}, {{"name": "now", "arguments": {{}}}}]',
        "Yes.",
        [("weather", ARGUMENTS), ("now", "{}")],
    ),
    (
        "mistral",
        f"[TOOL_CALLS]weather[ARGS]{ARGUMENTS}[TOOL_CALLS]now[CALL_ID]abcdefghi[ARGS]{{}}",
        "",
        [("weather", ARGUMENTS), ("now", "{}")],
    ),
    ("mistral", f"[TOOL_CALLS]weather{ARGUMENTS}", "", [("weather", ARGUMENTS)]),
    ("mistral", f"[TOOL_CALLS]weather{ARGUMENTS}, Sir.", ", Sir.", [("weather", ARGUMENTS)]),
    ("mistral", f'[TOOL_CALLS][{CALL}, {{"name"', "", [("weather", ARGUMENTS)]),
    ("mistral", "a list: [1, [TOOL_C", "a list: [1, [TOOL_C", []),
    ("mistral", "[TOOL_CALLS] what now?", "[TOOL_CALLS] what now?", []),
    ("mistral", "[TOOL_CALLS][1, 2]", "[TOOL_CALLS][1, 2]", []),
    ("mistral", "so [TOOL_CALLS] [] it is", "so [TOOL_CALLS] [] it is", []),
    ("mistral", "[TOOL_CALLS]a" + "[AAAA" * 500 + "!", "[TOOL_CALLS]a" + "[AAAA" * 500 + "!", []),  # not in 2^500 ways
    ("pythonic", '[weather(city="a]b")]', "", [("weather", '{"city": "a]b"}')]),
    (
        "pythonic",
        "\n [weather(city='', days=[1, {'a': true, 'b': false, 'c': null}], deep=None), now()]",
        "",
        [("weather", '{"city": "", "days": [1, {"a": true, "b": false, "c": null}], "deep": null}'), ("now", "{}")],
    ),
    ("pythonic", "<|python_start|>[now()]<|python_end|>", "", [("now", "{}")]),
    (
        "pythonic",
        r"[now(x='\ud83d', y='\ud83d\ude00')]",
        "",
        [("now", '{"x": "\N{REPLACEMENT CHARACTER}", "y": "😀"}')],
    ),
    # Names that are none in Python, and a line break that its strings can't have.
    (
        "pythonic",
        """[get-it(from=1, max-days = 2, größe='from=3, now(', text="a\nb\r\\n"), now ()]""",
        "",
        [("get-it", '{"from": 1, "max-days": 2, "größe": "from=3, now(", "text": "a\\nb\\r\\n"}'), ("now", "{}")],
    ),
    ("pythonic", "[now(**{'x': 1})]", "[now(**{'x': 1})]", []),
    ("pythonic", "[now(), (now)()]", "[now(), (now)()]", []),
    ("pythonic", "[now(x==1)]", "[now(x==1)]", []),
    ("pythonic", r"[now(x='\d')]", "", [("now", r'{"x": "\\d"}')]),  # without a warning
    ("pythonic", "[now(x=1e999)]", "[now(x=1e999)]", []),
    ("pythonic", "[1, 2, 3]", "[1, 2, 3]", []),
    ("pythonic", "[other(x=1)]", "[other(x=1)]", []),
    ("pythonic", "[weather(city=open('x'))]", "[weather(city=open('x'))]", []),
    ("pythonic", "[weather('Paris')] is what", "[weather('Paris')] is what", []),
    ("pythonic", "[weather(city=", "[weather(city=", []),
    ("pythonic", "[weat", "[weat", []),
    ("pythonic", "plain [now()]", "plain [now()]", []),
    # A name, then JSON.
    (
        "deepseek_v3",
        "So.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n" + '{"city": "x"}'
        "\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜>",
        "So.",
        [("weather", '{"city": "x"}'), ("now", "{}")],
    ),
    (
        "deepseek_v31",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>" + '{"city": "x"}'
        "<｜tool▁call▁end｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "",
        [("weather", '{"city": "x"}'), ("function", "{}")],
    ),
    (
        "deepseek_v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜>",
        "",
        [("now", "{}")],
    ),
    ("deepseek_v3", "<｜tool▁calls▁begin｜>a {b}", "<｜tool▁calls▁begin｜>a {b}", []),
    ("deepseek_v3", "<｜tool▁call▁begin｜>now<｜tool▁call▁end｜>", "<｜tool▁call▁begin｜>now<｜tool▁call▁end｜>", []),
    (
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
        + '{"city": "x"}<|tool_call_end|><|tool_call_begin|>now:1 <|tool_call_argument_begin|> {} <|tool_call_end|>'
        "<|tool_calls_section_end|>",
        "",
        [("weather", '{"city": "x"}'), ("now", "{}")],
    ),
    # JSON after other marks.
    ("longcat", f"<longcat_tool_call>{CALL}</longcat_tool_call>\nDone.", "\nDone.", [("weather", ARGUMENTS)]),
    ("longcat", f"<longcat_tool_call>{CALL}</longcat_tool_call>", "", [("weather", ARGUMENTS)]),
    ("internlm", f"<|action_start|><|plugin|>\n{LLAMA}\n<|action_end|>", "", [("weather", ARGUMENTS)]),
    ("granite-20b-fc", f"<function_call> {CALL}\n<function_call> {CALL}", "", [("weather", ARGUMENTS)] * 2),
    ("granite-20b-fc", f"<function_call>{CALL}}}\n```", "", [("weather", ARGUMENTS)]),
    (
        "gigachat3",
        f"So.<|message_sep|>\n\nfunction call<|role_sep|>\n{CALL}",
        "So.",
        [("weather", ARGUMENTS)],
    ),
    ("gigachat3", f"<|message_sep|>\n\nfunction call<|role_sep|>\n{CALL}", "", [("weather", ARGUMENTS)]),
    ("jamba", f"<tool_calls>[\n{CALL},\n{CALL}\n]</tool_calls>", "", [("weather", ARGUMENTS)] * 2),
    ("hunyuan_a13b", f"<tool_calls>[{CALL}]</tool_calls>", "", [("weather", ARGUMENTS)]),
    ("minimax", f"So.\n<tool_calls>\n{CALL}\n{CALL}\n</tool_calls>", "So.", [("weather", ARGUMENTS)] * 2),
    ("minimax", f"<tool_calls>\n{CALL}\n</tool_calls>", "", [("weather", ARGUMENTS)]),
    ("llama4_pythonic", "<|python_start|>[now()]<|python_end|>", "", [("now", "{}")]),
    # Texts between tags, which a schema makes values of.
    (
        "qwen3_coder",
        'So.\n<tool_call>\n<function=weather>\n<parameter=city>\n5 <b>\n"x"\n</parameter>\n</function>\n</tool_call>\n'
        "<tool_call>\n<function=now>\n</function>\n</tool_call> Done.",
        "So. Done.",
        [("weather", '{"city": "5 <b>\\n\\"x\\""}'), ("now", "{}")],
    ),
    ("qwen3_coder", "<function=now>\n</function>\n</tool_call>", "", [("now", "{}")]),
    (
        "qwen3_coder",
        "<tool_call>\n<function=now>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>",
        "",
        [("now", '{"x": 1}')],
    ),
    ("qwen3_coder", "<tool_call>so</tool_call>", "<tool_call>so</tool_call>", []),
    (
        "qwen3_xml",
        "<tool_call><function=typed><parameter=n>3</parameter><parameter=r>1.5</parameter><parameter=b>True</parameter>"
        '<parameter=l>[1, "a"]</parameter><parameter=o>{"x": None,}</parameter><parameter=m>null</parameter>'
        "<parameter=e>2</parameter><parameter=u>7</parameter><parameter=s>7</parameter><parameter=w>NaN</parameter>"
        "</function></tool_call>",
        "",
        [
            (
                "typed",
                '{"n": 3, "r": 1.5, "b": true, "l": [1, "a"], "o": {"x": null}, "m": null, "e": 2, "u": 7, "s": "7", '
                '"w": "NaN"}',
            )
        ],
    ),
    (
        "qwen3_xml",
        "<tool_call><function=typed><parameter=n>three</parameter><parameter=m>nil</parameter><parameter=s>null"
        "</parameter><parameter=u>so</parameter><parameter=n>4</function></tool_call>",
        "",
        [("typed", '{"n": 4, "m": "nil", "s": "null", "u": "so"}')],
    ),
    (
        "seed_oss",
        "<seed:tool_call>\n<function=weather>\n<parameter=city>x</parameter>\n</function>\n</seed:tool_call>",
        "",
        [("weather", '{"city": "x"}')],
    ),
    (
        "glm45",
        "So.\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>São 1</arg_value>\n</tool_call>\n"
        "<tool_call>now\n</tool_call>",
        "So.",
        [("weather", '{"city": "São 1"}'), ("now", "{}")],
    ),
    (
        "glm47",
        "<tool_call>weather<arg_key>city</arg_key><arg_value>x</arg_value></tool_call>",
        "",
        [("weather", '{"city": "x"}')],
    ),
    (
        "glm45",
        "<tool_call>weather<arg_key>city</arg_key><arg_value>x</arg_value></tool_call>",
        "",
        [("weather", '{"city": "x"}')],
    ),
    ("glm45", "<tool_call>so</tool_call>", "<tool_call>so</tool_call>", []),
    (
        "minimax_m2",
        '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">x</parameter>\n</invoke>\n'
        '<invoke name="now">\n</invoke>\n</minimax:tool_call>',
        "",
        [("weather", '{"city": "x"}'), ("now", "{}")],
    ),
    (
        "step3",
        "<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>"
        '<steptml:invoke name="weather"><steptml:parameter name="city">x</steptml:parameter></steptml:invoke>'
        "<｜tool_call_end｜><｜tool_calls_end｜>",
        "",
        [("weather", '{"city": "x"}')],
    ),
    (
        "functiongemma",
        '<start_function_call>call:weather{city:<escape>São {"P"}<escape>,days:[1,{x:true}]}<end_function_call>',
        "",
        [("weather", '{"city":"São {\\"P\\"}","days":[1,{"x":true}]}')],
    ),
    (
        "functiongemma",
        "So. <start_function_call>call:now{}<end_function_call>",
        "So.",
        [("now", "{}")],
    ),
]


@pytest.mark.parametrize(("name", "text", "content", "calls"), HEARD)
def test_calls_and_content_are_told_apart(name: str, text: str, content: str, calls: list[tuple[str, str]]) -> None:
    for pieces in cuts(text):
        assert hear(tool_parser_class(name)(USE), pieces)[:2] == (content, calls), pieces
    parsed = tool_parser_class(name)(USE).feed(text)
    assert [call.name for call in parsed.calls if call.name] == [called for called, _ in calls]  # not only at the end


@pytest.mark.parametrize(
    ("name", "text", "content"),
    [
        ("hermes", "<tool_call>so", "<tool_call>so"),
        ("hermes", f"<tool_call>{CALL}so", "so"),
        ("granite", "<|tool_call|>so", "<|tool_call|>so"),
        ("phi4_mini_json", "functools, so", "functools, so"),
        ("lfm2", "<|tool_call_start|>so<|tool_call_end|>so", "<|tool_call_start|>so<|tool_call_end|>so"),
        ("mistral", "[TOOL_CALLS]what?", "[TOOL_CALLS]what?"),
        ("mistral", "[TOOL_CALLS][]so", "[TOOL_CALLS][]so"),
        ("llama3_json", "so", "so"),
        ("llama3_json", f"{LLAMA}so", "so"),
        ("pythonic", "so", "so"),
        ("pythonic", "[so]", "[so]"),
        ("pythonic", "[so(", "[so("),
        ("pythonic", "[now(so)]", "[now(so)]"),
        ("pythonic", "[now()]so", "so"),
        ("deepseek_v3", "<｜tool▁calls▁begin｜>so" + "o" * 300, "<｜tool▁calls▁begin｜>so" + "o" * 300),
        ("kimi_k2", "<|tool_call_begin|>so {", "<|tool_call_begin|>so {"),
        ("glm45", "<tool_call>so</tool_call>so", "<tool_call>so</tool_call>so"),
    ],
)
def test_text_leaves_once_it_can_be_no_call(name: str, text: str, content: str) -> None:
    assert tool_parser_class(name)(USE).feed(text).content == content


@pytest.mark.parametrize("name", sorted(TOOL_PARSERS))
def test_a_syntax_names_what_may_be_special_tokens(name: str) -> None:
    calls = [text for syntax, text, content, calls in HEARD if syntax == name and calls and not content]
    markers = re.findall(r"</?[\w:]+>|<[|｜][^<>]+[|｜]>|\[[A-Z_]+\]", "".join(calls))
    assert set(tool_parser_class(name).markers) == set(markers)


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (CALL, "", [("weather", ARGUMENTS)]),
        (f"[{CALL},\n {CALL}]", "", [("weather", ARGUMENTS)] * 2),
        (f'[{CALL},\n {{"name": "we', "", [("weather", ARGUMENTS)]),
        (f"[{CALL} , ", "", [("weather", ARGUMENTS)]),
        (f"[{CALL}]{CALL}", CALL, [("weather", ARGUMENTS)]),
        # What the token limit cut off.
        ('[ {"na', "", []),
        ('{"name": "wea', "", []),
        (" [", "", []),
        ('{"name": "now", "arguments": {', "", [("now", "{}")]),
        ("not forced after all", "not forced after all", []),
        ("[]", "[]", []),
    ],
)
def test_forced_calls_are_read(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    for pieces in cuts(text):
        assert hear(ForcedParser(USE), pieces)[:2] == (content, calls)


@pytest.mark.parametrize(
    ("name", "text", "content"),
    [
        ("hermes", f"So.\n<tool_call>\n{CALL}\n</tool_call>", "So."),
        ("mistral", f"So. [TOOL_CALLS][{CALL}]", "So."),
        ("mistral", f"[TOOL_CALLS]weather[ARGS]{ARGUMENTS}", ""),
        ("granite", f"So. <|tool_call|>[{CALL}]", "So."),
        ("phi4_mini_json", f"So. <|tool_call|>[{CALL}]<|/tool_call|>", "So."),
        ("lfm2", "So. <|tool_call_start|>[now()]<|tool_call_end|>", "So."),
        ("olmo3", "So. <function_calls>now()</function_calls>", "So."),
        ("llama3_json", f"<|python_tag|>{LLAMA}", ""),
        ("pythonic", "<|python_start|>[now()]<|python_end|>", ""),
        ("deepseek_v3", "So.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜>", "So."),
        ("kimi_k2", "<|tool_call_begin|>now:0<|tool_call_argument_begin|>{}<|tool_call_end|>", ""),
        ("minimax", f"So. <tool_calls>\n{CALL}\n{CALL}\n</tool_calls>", "So."),
        ("qwen3_coder", "So. <tool_call><function=now><parameter=x>1</parameter></function></tool_call>", "So."),
        ("glm45", "<tool_call>now<arg_key>x</arg_key><arg_value>1</arg_value></tool_call>", ""),
        ("functiongemma", "<start_function_call>call:now{}<end_function_call>", ""),
    ],
)
def test_wherever_a_limit_cuts_no_syntax_is_content(name: str, text: str, content: str) -> None:
    """Nor do arguments become whole that the limit cut off: who calls a tool must know that some are missing."""
    whole = hear(tool_parser_class(name)(USE), [text])[1]
    for length in range(len(content), len(text)):
        for pieces in ([text[:length]], list(text[:length])):
            said, calls, _ = hear(tool_parser_class(name)(USE), pieces, FinishReason.LENGTH)
            assert said.strip() == content, text[:length]
            assert all(
                called == name and given.startswith(arguments)
                for (called, arguments), (name, given) in zip(calls, whole, strict=False)
            )


@pytest.mark.parametrize(("name", "text"), [("lfm2", "<|tool_call_start|>[now()]"), ("olmo3", "<function_calls>now()")])
@pytest.mark.parametrize("end", FinishReason)
def test_a_block_without_its_end_mark_is_read(name: str, text: str, end: FinishReason) -> None:
    heard = hear(tool_parser_class(name)(USE), [f"So. {text}"], end)
    assert (heard[0].rstrip(), heard[1]) == ("So.", [] if end is FinishReason.LENGTH else [("now", "{}")])


@pytest.mark.parametrize("name", sorted(TOOL_PARSERS))
def test_a_text_that_a_limit_cuts_is_content(name: str) -> None:
    for text in ("a [list] of {things", "[1, 2", '{"answer": 4', "a < b"):
        assert hear(tool_parser_class(name)(USE), [text], FinishReason.LENGTH)[0] == text


@pytest.mark.parametrize("name", sorted(TOOL_PARSERS))
def test_plain_text_stays_as_it_is(name: str) -> None:
    text = " \n Hello, {world} [x]: <a> 1 < 2; [not a call]\n\n"
    for pieces in cuts(text):
        assert hear(tool_parser_class(name)(USE), pieces)[:2] == (text, [])


#: What a model that confuses the syntaxes may write.
PIECES = [
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    *("<|python_tag|>", "<|python_start|>", "<|python_end|>", "now", "now(x=1)", 'weather(city="]")'),
    *("<|tool_call|>", "<|/tool_call|>", "functools[", "<|tool_call_start|>", "<|tool_call_end|>"),
    *("<function_calls>", "</function_calls>", "<tool_calls>", "</tool_calls>", "<function_call>"),
    *(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "function<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "\n```json\n",
    ),
    *("<|tool_calls_section_begin|>", "<|tool_call_begin|>", "now:0<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    *("<function=now>", "<parameter=x>", "</parameter>", "</function>", "<arg_key>x</arg_key>", "<arg_value>"),
    *("<minimax:tool_call>", '<invoke name="now">', "</invoke>", "</minimax:tool_call>", "<seed:tool_call>"),
    *("<start_function_call>", "call:now{", "<escape>", "<end_function_call>", "</seed:tool_call>"),
    *(CALL, LLAMA, CALL[:-1], CALL[:20], ARGUMENTS, "{}", "[]", '"name"', '"arguments"', "text", "é"),
    *"{}[](),;:\"'\\ \n",
]


@pytest.mark.parametrize("name", [*{path: name for name, path in TOOL_PARSERS.items()}.values(), "forced"])
def test_nothing_depends_on_the_pieces_and_nothing_is_lost(name: str) -> None:
    make = ForcedParser if name == "forced" else tool_parser_class(name)
    draw = random.Random(name)
    for _ in range(300):
        text = "".join(draw.choices(PIECES, k=draw.randint(1, 7)))
        content, calls, _ = hear(make(USE), [text])
        for pieces in cuts(text):
            assert hear(make(USE), pieces)[:2] == (content, calls), pieces
        assert calls or content == text or name == "forced", text
        assert all(isinstance(json.loads(arguments), object) for _, arguments in calls), calls


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("olmo3", "<function_calls>now()" + "\n" * 20_000 + "9</function_calls>"),
        ("lfm2", '<|tool_call_start|>[now(x="' + '\\"' * 20_000 + ")]<|tool_call_end|>"),
    ],
)
def test_no_text_takes_quadratic_time(name: str, text: str) -> None:
    assert hear(tool_parser_class(name)(USE), [text])[1] == []  # in minutes, if it did


def test_arguments_leave_while_they_are_written() -> None:
    parser = tool_parser_class("hermes")(USE)
    assert parser.feed('<tool_call>{"name": "weather"') == ParsedText()
    (first,) = parser.feed(', "arguments": {"ci').calls
    assert (first.name, first.arguments) == ("weather", '{"ci')
    (second,) = parser.feed('ty": ').calls
    assert second.arguments == 'ty": '


def test_only_the_first_call_is_kept_where_parallel_ones_are_not_wanted() -> None:
    use = ToolUse(tools=USE.tools, parallel=False)
    text = f"<tool_call>{CALL}</tool_call><tool_call>{CALL}</tool_call>"
    for pieces in cuts(text):
        assert hear(tool_parser_class("hermes")(use), pieces)[1] == [("weather", ARGUMENTS)]


def test_ids_are_what_the_templates_take_back() -> None:
    text = f"[TOOL_CALLS][{CALL}]"
    (mistral,) = hear(tool_parser_class("mistral")(USE), [text])[2]
    assert len(mistral) == 9 and mistral.isalnum()
    (other,) = hear(tool_parser_class("hermes")(USE), [f"<tool_call>{CALL}"])[2]
    assert other.startswith("call_")
    kimi = "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|>" * 2
    given, repeated = hear(tool_parser_class("kimi_k2")(USE), [kimi])[2]
    assert given == "functions.now:0" and repeated.startswith("call_")
    (forced,) = hear(ForcedParser(USE, tool_parser_class("mistral").call_id), [CALL])[2]
    assert len(forced) == 9


def test_an_unknown_parser_is_told() -> None:
    with pytest.raises(
        ConfigError, match=r"option\.tool_call_parser 'nope' is not known; expected one of deepseek_v3, "
    ):
        tool_parser_class("nope")


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ '<tool_call>' }}", "hermes"),
        ("<tool_call>\n<function=name>", "qwen3_coder"),
        ("<seed:tool_call>\n<function=name>", "seed_oss"),
        ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "deepseek_v3"),
        ("<tool_calls> [", "jamba"),
        ("<|tool_calls_section_begin|>", "kimi_k2"),
        ("[AVAILABLE_TOOLS]...[TOOL_CALLS]", "mistral"),
        ('Respond in the format {"name": function name, "parameters": dictionary}', "llama3_json"),
        ('<|python_start|> <|python_end|> {"name": function name, "parameters": dictionary}', "llama3_json"),
        ("[func_name1(params_name1=params_value1)] <|python_tag|>", "pythonic"),
        ("<|python_start|>", "pythonic"),
        ("<|python_tag|>", "llama3_json"),
        ("<tool_call>name\n<arg_key>", "glm45"),
        ("<tool_call> followed by a JSON list of tools. <|start_of_role|>", "granite"),
        ("respond only with <|tool_call|> followed by a JSON list of tools used", "granite"),
        ("<tool_call></tool_call> XML tags <|start_of_role|>", "hermes"),
        ("'<|tool|>' + message['tools'] + '<|/tool|>'", "phi4_mini_json"),
        ("functools[{{ name }}]", "phi4_mini_json"),
        ("<|tool_list_start|>", "lfm2"),
        ("List of tools: [", "lfm2"),
        ("<function_calls>", "olmo3"),
        ("{{ messages }}", None),
    ],
)
def test_the_template_tells_the_syntax(template: str, expected: str | None) -> None:
    assert syntax_of(template) == expected


# ------------------------------------------------------------------------------------------------ forcing


def accepts(use: ToolUse, value: Any) -> bool:
    grammar = forced_calls(use)
    assert grammar.kind == "json_schema"
    return bool(jsonschema.Draft202012Validator(json.loads(grammar.source)).is_valid(value))


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def test_a_named_tool_is_forced() -> None:
    use = ToolUse(tools=USE.tools, choice="named", name="weather")
    assert accepts(use, call("weather", city="x"))
    assert not accepts(use, call("weather"))
    assert not accepts(use, call("now"))
    assert not accepts(use, {"arguments": {"city": "x"}})
    assert not accepts(use, {"name": "weather"})
    assert not accepts(use, {**call("weather", city="x"), "id": 1})
    assert not accepts(use, [call("weather", city="x")])


def test_some_tool_is_forced() -> None:
    several = ToolUse(tools=USE.tools, choice="required")
    assert accepts(several, [call("now"), call("weather", city="x")])
    assert accepts(several, [call("now")])
    assert not accepts(several, call("now"))
    assert not accepts(several, [])
    assert not accepts(several, [call("now", x=1)])
    one = ToolUse(tools=USE.tools, choice="required", parallel=False)
    assert accepts(one, call("now"))
    assert not accepts(one, [call("now")])


def test_references_move_with_their_schema() -> None:
    schema = {
        "type": "object",
        "properties": {"tree": {"$ref": "#/$defs/node"}, "$ref": {"type": "integer"}},
        "required": ["tree"],
        "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
    }
    use = ToolUse(tools=(tool("plant", schema),), choice="named", name="plant")
    assert accepts(use, {"name": "plant", "arguments": {"tree": {"next": {"next": {}}}, "$ref": 3}})
    assert not accepts(use, {"name": "plant", "arguments": {"tree": {"next": 5}}})


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"x": {"const": 1}}, "required": ["x"]},
        {
            "$id": "http://example.com/s",
            "properties": {"x": {"$ref": "http://example.com/s#/$defs/one"}},
            "$defs": {"one": {"const": 1}},
        },
        {"properties": {"x": {"$ref": "#one"}}, "$defs": {"one": {"$anchor": "one", "const": 1}}},
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "$ref": "#/definitions/all",
            "definitions": {"all": {"properties": {"x": {"$ref": "#/definitions/one"}}}, "one": {"const": 1}},
        },
        *(
            {
                "$schema": f"http://json-schema.org/{draft}/schema#",
                "properties": {"x": {"$ref": "#/definitions/one"}},
                "definitions": {"one": {"enum": [1]}},
            }
            for draft in ("draft-03", "draft-04")
        ),
        {"allOf": [{"properties": {"x": {"const": 1}}}, {"required": ["x"]}]},
        {
            "$ref": "#/definitions/all",
            "allOf": [{"properties": {"x": {"const": 1}}}],
            "definitions": {"all": {"required": ["x"]}},
        },
        {"additionalProperties": {"const": 1}, "required": ["x"]},
    ],
    ids=json.dumps,
)
def test_arguments_are_an_object_whatever_else_a_schema_says(schema: dict[str, Any]) -> None:
    use = ToolUse(tools=(tool("f", schema), tool("g", {**schema, "minProperties": 1})), choice="required")
    assert accepts(use, [call("f", x=1), call("g", x=1)])
    assert not accepts(use, [call("f", x=2)])
    assert not accepts(use, [call("g")])
    assert not accepts(use, [{"name": "f", "arguments": 1}])


def test_schemas_with_the_same_id_keep_their_own_references() -> None:
    schema = {"$id": "http://example.com/s", "properties": {"x": {"$ref": "#/$defs/one"}}}
    one, two = ({**schema, "$defs": {"one": {"const": value}}} for value in (1, 2))
    use = ToolUse(tools=(tool("f", one), tool("g", two)), choice="required")
    assert accepts(use, [call("f", x=1), call("g", x=2)])
    assert not accepts(use, [call("f", x=2)])
    assert not accepts(use, [call("g", x=1)])


def test_data_stays_what_it_is() -> None:
    data = {"$ref": "#/x", "properties": {}}
    use = ToolUse(tools=(tool("f", {"properties": {"x": {"const": data}}}),), choice="named", name="f")
    assert accepts(use, call("f", x=data))
