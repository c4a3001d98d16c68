"""What a load requests: drawn, or of a file."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import pytest

from djl_python.bench.workload import Item, arrivals_s, chosen, read_items

SHAREGPT = {
    "id": "x",
    "conversations": [{"from": "human", "value": "What is it?"}, {"from": "gpt", "value": "x" * 40}, {"from": "human"}],
}


@pytest.mark.parametrize(
    ("value", "item"),
    [
        ({"prompt": "Hello", "output_tokens": 3}, Item("Hello", None, 3)),
        ({"prompt": "Hello"}, Item("Hello")),
        ({"prompt_tokens": 20, "output_tokens": 3}, Item("", 20, 3)),
        ({"input_len": 20, "output_len": 3, "timestamp": 0.5}, Item("", 20, 3)),
        (SHAREGPT, Item("What is it?", None, 10)),
    ],
)
@pytest.mark.parametrize("lines", [True, False])
def test_kinds_of_items(tmp_path: Path, value: Any, item: Item, lines: bool) -> None:
    file = tmp_path / "items"
    file.write_text(f"{json.dumps(value)}\n\n{json.dumps(value)}\n" if lines else json.dumps([value, value], indent=1))
    assert read_items(file) == [item, item]


def test_conversations_without_an_answer_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "items.json"
    file.write_text(json.dumps([{"conversations": []}, {"conversations": [1, 2]}, SHAREGPT]))
    assert len(read_items(file)) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there are no requests in it"),
        ("[]", "there are no requests in it"),
        ("{", "expected a JSON array, or a JSON object on each line"),
        ("[1]", "item 1: expected an object"),
        ('{"prompt": "a"}\n{"text": "b"}', r"line 2: expected a prompt \(text\), prompt_tokens"),
        ('{"prompt": "a", "output_tokens": 0}', "line 1: output_tokens: expected an integer >= 1"),
        ('{"prompt_len": "9"}', "line 1: prompt_len: expected an integer >= 1"),
    ],
)
def test_a_file_without_requests_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "items"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_items(file)
    with pytest.raises(ValueError, match="No such file"):
        read_items(tmp_path / "gone")


def test_items_are_taken_in_an_order_of_the_seed_and_all_before_any_again() -> None:
    items = [Item(f"prompt {number}", output_tokens=number) for number in range(1, 5)]
    made = chosen(items, 10, "1", output_tokens=9, words_of_token=1.0)
    assert made == chosen(items, 10, "1", output_tokens=9, words_of_token=1.0)
    assert made != chosen(items, 10, "2", output_tokens=9, words_of_token=1.0)
    assert len({one.prompt for one in made[:4]}) == len({one.prompt for one in made[4:8]}) == 4
    assert all(one.prompt == f"prompt {one.output_tokens}" for one in made)


def test_a_length_alone_makes_a_prompt() -> None:
    first, second = chosen([Item(prompt_tokens=20)], 2, "1", output_tokens=9, words_of_token=0.5)
    assert len(first.prompt.split()) == len(second.prompt.split()) == 10
    assert first.prompt != second.prompt and first.output_tokens == 9


def test_arrivals_are_a_poisson_process() -> None:
    times_s = arrivals_s(5000, 20.0, "1")
    gaps_s = [later - earlier for earlier, later in itertools.pairwise(times_s)]
    assert times_s[0] == 0 and min(gaps_s) > 0
    assert fmean(gaps_s) == pytest.approx(1 / 20, rel=0.05)
    assert pstdev(gaps_s) == pytest.approx(1 / 20, rel=0.1), "as wide as long: exponential"
    assert times_s == arrivals_s(5000, 20.0, "1") != arrivals_s(5000, 20.0, "2")
