"""The workload: prompts and answer lengths, drawn at random or read from a file. Pure functions.

A file of requests is JSON (an array) or JSON Lines. An item is one of

    {"prompt": "...", "output_tokens": 64}                      a prompt as it is
    {"prompt_tokens": 220, "output_tokens": 64}                 a length, for which a prompt is made
    {"conversations": [{"from": "human", "value": "..."},       ShareGPT's: the first question, and an answer as long
                       {"from": "gpt", "value": "..."}]}        as the first answer
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

#: Short English words: about one token each for most tokenizers.
WORDS: Final = """
    the of and to in is that for it as with be this by are not or from on if we can which will all value name file text
    list number type key code line time set data test path call result size index read write open close first last new
    old next other each when where then than only such string state mode input output process server client message
    request response format version word order point memory event signal option command
    """.split()
#: Characters of a token of English, about: how long an answer of a conversation was is only known as text.
_CHARACTERS_OF_TOKEN: Final = 4
#: Names of lengths in items, this project's first, then those of other benchmarks.
_PROMPT_LENGTHS: Final = ("prompt_tokens", "input_tokens", "prompt_len", "input_len", "input_length")
_OUTPUT_LENGTHS: Final = ("output_tokens", "max_tokens", "output_len", "output_length", "expected_output_len")


@dataclass(frozen=True)
class Item:
    """One request of a file.

    Attributes:
        prompt: "" where only its length is given.
        prompt_tokens: its length, where that is given.
        output_tokens: how many tokens the answer shall have; None: as many as the command line says.
    """

    prompt: str = ""
    prompt_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(frozen=True)
class WantedRequest:
    """One request: its prompt, and how many tokens its answer shall have."""

    prompt: str
    output_tokens: int


def prompts(count: int, words: int, seed: str) -> list[str]:
    """`count` different prompts of `words` words, the same for the same seed."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=words)) for _ in range(count)]


def chosen(
    items: Sequence[Item], count: int, seed: str, *, output_tokens: int, words_of_token: float
) -> list[WantedRequest]:
    """`count` requests of a file, in an order that the seed decides; each is taken again only after all others were.

    Args:
        output_tokens: the length of answers for items without one.
        words_of_token: how many of `WORDS` make a token, for items with a length alone.
    """
    draw = random.Random(seed)
    order: list[Item] = []
    while len(order) < count:
        order += draw.sample(items, len(items))
    made = []
    for item in order[:count]:
        words = max(1, round((item.prompt_tokens or 1) * words_of_token))
        prompt = item.prompt or " ".join(draw.choices(WORDS, k=words))
        made.append(WantedRequest(prompt, item.output_tokens or output_tokens))
    return made


def arrivals_s(count: int, rate: float, seed: str) -> list[float]:
    """When `count` requests are sent, in seconds from the first: a Poisson process of `rate` requests a second."""
    draw = random.Random(f"arrivals/{seed}")
    times_s = [0.0]
    for _ in range(count - 1):
        times_s.append(times_s[-1] + draw.expovariate(rate))
    return times_s


def read_items(path: Path) -> list[Item]:
    """The requests of a file. Conversations without a question and an answer are left out.

    Raises:
        ValueError: the file can't be read, or an item is none of the kinds: says which.
    """
    try:
        data = path.read_bytes()
    except OSError as exc:
        raise ValueError(f"{path}: {exc.strerror}") from exc
    items = [_item(f"{path}: {where}", value) for where, value in _values(path, data)]
    requests = [item for item in items if item is not None]
    if not requests:
        raise ValueError(f"{path}: there are no requests in it")
    return requests


def _values(path: Path, data: bytes) -> Iterator[tuple[str, Any]]:
    """The items of a file with their places in words: of a JSON array, or one on each line."""
    try:
        if data.lstrip()[:1] == b"[":
            yield from ((f"item {number}", value) for number, value in enumerate(msgspec.json.decode(data), 1))
            return
        for number, line in enumerate(data.splitlines(), 1):
            if line.strip():
                yield f"line {number}", msgspec.json.decode(line)
    except msgspec.DecodeError as exc:
        raise ValueError(f"{path}: expected a JSON array, or a JSON object on each line: {exc}") from None


def _item(where: str, value: Any) -> Item | None:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: expected an object")
    if isinstance(turns := value.get("conversations"), list):
        return _first_turns(turns)
    prompt_tokens, output_tokens = _length(where, value, _PROMPT_LENGTHS), _length(where, value, _OUTPUT_LENGTHS)
    prompt = value.get("prompt", "")
    if not isinstance(prompt, str) or not (prompt or prompt_tokens):
        raise ValueError(f"{where}: expected a prompt (text), prompt_tokens (a number), or conversations")
    return Item(prompt, prompt_tokens, output_tokens)


def _length(where: str, value: Mapping[str, Any], names: Sequence[str]) -> int | None:
    for name in names:
        if (length := value.get(name)) is not None:
            if not isinstance(length, int) or isinstance(length, bool) or length < 1:
                raise ValueError(f"{where}: {name}: expected an integer >= 1")
            return length
    return None


def _first_turns(turns: Sequence[Any]) -> Item | None:
    texts = [turn.get("value") for turn in turns[:2] if isinstance(turn, dict)]
    question, answer = texts if len(texts) == 2 else ("", "")
    if not (isinstance(question, str) and isinstance(answer, str) and question.strip() and answer.strip()):
        return None
    return Item(question, None, max(1, len(answer) // _CHARACTERS_OF_TOKEN))
