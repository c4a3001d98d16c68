"""Stop sequences and banned words: read once for a request, whatever it asks for."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence

import pytest

from djl_python.core.types import Branching, GenerateRequest, SamplingParams, TextOptions
from djl_python.text.stop import StopSequences
from djl_python.text.tokens.tokenizer import Tokenizer
from tests.handlers.harness import EOS, EOS_ID, Served


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, threading.Thread]]:
    """What was made, of which first word, and by which thread."""
    lists: list[tuple[str, threading.Thread]] = []
    make, ban = StopSequences.__init__, Tokenizer.bad_words

    def counting_make(self: StopSequences, words: Sequence[str]) -> None:
        lists.append((words[0], threading.current_thread()))
        make(self, words)

    def counting_ban(self: Tokenizer, words: Collection[str]) -> tuple[tuple[int, ...], ...]:
        lists.append((next(iter(words)), threading.current_thread()))
        return ban(self, words)

    monkeypatch.setattr(StopSequences, "__init__", counting_make)
    monkeypatch.setattr(Tokenizer, "bad_words", counting_ban)
    return lists


def request(prompt: str, stop: str, banned: str = "", n: int = 1) -> GenerateRequest:
    return GenerateRequest(
        prompt=prompt,
        sampling=SamplingParams(max_new_tokens=8),
        branching=Branching(n=n, best_of=n),
        text=TextOptions(stop_sequences=(stop,)),
        bad_sequences=(banned,) if banned else (),
    )


async def test_lists_are_read_once_for_all_prompts_and_sequences(
    served: Served, made: list[tuple[str, threading.Thread]]
) -> None:
    deltas = await served.plain(*(request(prompt, "STOP", "bad", n=3) for prompt in "abc"))
    assert sum(delta.finish is not None for delta in deltas) == 9
    assert sorted(word for word, _ in made) == ["STOP", "bad"]
    assert len({sampling.bad_words_ids for sampling in served.engine.sampling.values()}) == 1
    await served.plain(request("a", "STOP", "bad"))  # another request
    assert len(made) == 4


async def test_prompts_may_have_lists_of_their_own(served: Served, made: list[tuple[str, threading.Thread]]) -> None:
    served.engine.reply_to = lambda prompt: "one two"
    deltas = await served.plain(request("a", "ne", n=2), request("b", "wo"), request("c", "ne"))
    texts = {delta.choice: delta.finish.text for delta in deltas if delta.finish}
    assert texts == {0: "o", 1: "o", 2: "one t", 3: "o"}
    assert [word for word, _ in made] == ["ne", "wo"]


async def test_long_lists_are_read_off_the_loop(served: Served, made: list[tuple[str, threading.Thread]]) -> None:
    await served.plain(request("a", "x" * 10_000))
    await served.plain(request("a", "x"))
    (_, long), (_, short) = made
    assert long is not threading.current_thread() and short is threading.current_thread()


@pytest.mark.parametrize(
    ("stops", "ignore_eos", "options", "expected"),
    [
        ((EOS,), True, {}, (EOS_ID,)),
        (("x", EOS, EOS), True, {}, (EOS_ID,)),
        ((EOS,), False, {}, ()),  # it ends the sequence, and as its end
        ((EOS,), True, {"skip_special_tokens": False}, ()),  # it is text, which is searched
        (("x", f"{EOS}x"), True, {}, ()),
    ],
)
async def test_a_special_token_that_is_no_text_is_a_stop_sequence_all_the_same(
    served: Served, stops: tuple[str, ...], ignore_eos: bool, options: dict[str, bool], expected: tuple[int, ...]
) -> None:
    await served.plain(
        GenerateRequest(
            prompt="a",
            sampling=SamplingParams(max_new_tokens=8, ignore_eos=ignore_eos),
            text=TextOptions(stop_sequences=stops, **options),
        )
    )
    assert served.engine.sampling[1].stop_token_ids == expected
