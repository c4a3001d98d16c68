"""Several sequences for one of LMI's requests, and beam search, against a running server."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from djl_python.testing import RunningServer

PROMPT = "What is deep learning?"


def ask(demo: RunningServer, stream: bool = False, **parameters: Any) -> tuple[int, Any]:
    """(status, JSON) of an answer of at most eight tokens."""
    body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 8, **parameters}, "stream": stream}
    request = urllib.request.Request(f"{demo.url}/invocations", json.dumps(body).encode())
    request.add_header("content-type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def sequences(answer: Any) -> list[Any]:
    """Best first, each with its text and tokens."""
    details = answer["details"]
    best = {"generated_text": answer["generated_text"], **details}
    return [best, *details.get("best_of_sequences", [])]


def score(sequence: Any) -> float:
    """The sum of its tokens' log-probabilities."""
    return float(sum(token["log_prob"] for token in sequence["tokens"]))


def mean(sequence: Any) -> float:
    return score(sequence) / float(sequence["generated_tokens"])


def test_the_likeliest_comes_first_and_the_others_after_it(demo: RunningServer) -> None:
    drawn: dict[str, Any] = {"n": 3, "best_of": 5, "do_sample": True, "temperature": 3.0, "seed": 7, "details": True}
    status, answer = ask(demo, **drawn)
    choices = sequences(answer)
    assert status == 200
    assert len(choices) == 3
    assert len({sequence["generated_text"] for sequence in choices}) > 1
    assert [mean(sequence) for sequence in choices] == sorted(map(mean, choices), reverse=True)
    for other in choices[1:]:
        assert set(other) == {"finish_reason", "generated_tokens", "generated_text", "tokens"}
        assert len(other["tokens"]) == other["generated_tokens"]
        assert "".join(token["text"] for token in other["tokens"]) == other["generated_text"]
    assert ask(demo, **drawn) == (200, answer)


def test_greedy_sequences_are_all_the_same(demo: RunningServer) -> None:
    _, answer = ask(demo, best_of=2, details=True)
    best, other = sequences(answer)
    assert best["generated_text"] == other["generated_text"]
    assert ask(demo, best_of=2) == (200, {"generated_text": best["generated_text"]})


def test_beams_are_the_sequences(demo: RunningServer) -> None:
    _, greedy = ask(demo, details=True, ignore_eos=True)
    status, answer = ask(demo, num_beams=4, details=True, ignore_eos=True)
    beams = sequences(answer)
    assert status == 200
    assert len({sequence["generated_text"] for sequence in beams}) == 4
    assert [score(sequence) for sequence in beams] == sorted(map(score, beams), reverse=True)
    assert score(beams[0]) >= score(sequences(greedy)[0]) - 1e-4
    _, two = ask(demo, num_beams=4, n=2, details=True, ignore_eos=True)
    assert [sequence["generated_text"] for sequence in sequences(two)] == [
        sequence["generated_text"] for sequence in beams[:2]
    ]
    assert ask(demo, num_beams=4, ignore_eos=True) == (200, {"generated_text": answer["generated_text"]})


def test_beam_search_has_its_parameters(demo: RunningServer) -> None:
    status, _ = ask(demo, num_beams=3, length_penalty=-2.0, early_stopping=True)
    assert status == 200


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"n": 2, "stream": True}, "parameters.n: expected 1 where the answer is streamed, got 2"),
        ({"num_beams": 2, "stream": True}, "parameters.num_beams: expected 1 where the answer is streamed, got 2"),
        ({"n": 3, "best_of": 2}, "parameters.n: expected at most best_of (2), got 3"),
        ({"num_beams": 2, "do_sample": True}, "parameters.num_beams: beam search does not go with do_sample"),
    ],
)
def test_impossible_numbers_of_choices_are_refused(demo: RunningServer, asked: dict[str, Any], message: str) -> None:
    status, answer = ask(demo, **asked)
    assert status == 424
    assert (answer["error"], answer["details"]["finish_reason"]) == (message, "error")
