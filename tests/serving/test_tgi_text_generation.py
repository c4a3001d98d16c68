"""TGI's own Python client against a running server.

It asks for huggingface_hub < 1, and works with later ones: the Makefile installs it without what it asks for.
"""

from __future__ import annotations

from typing import Any

import pytest
import text_generation
from text_generation import errors as client_errors
from text_generation import types

from djl_python.testing import RunningServer

#: The client's own age.
pytestmark = pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince20")

PROMPT = "What is deep learning?"


@pytest.fixture(scope="module")
def client(demo: RunningServer) -> Any:
    return text_generation.Client(demo.url)


def test_client(client: Any) -> None:
    answer = client.generate(PROMPT, max_new_tokens=8, decoder_input_details=True, top_n_tokens=2)
    assert answer.details.finish_reason in types.FinishReason
    assert answer.details.seed is None
    assert "".join(token.text for token in answer.details.tokens) == answer.generated_text
    assert answer.details.top_tokens is not None
    assert {len(top) for top in answer.details.top_tokens} == {2}
    assert len(answer.details.prefill) > 1
    *before, last = client.generate_stream(PROMPT, max_new_tokens=8)
    assert "".join(each.token.text for each in (*before, last)) == last.generated_text == answer.generated_text
    assert all(each.generated_text is None and each.details is None for each in before)
    assert last.details is not None
    assert last.details.generated_tokens == answer.details.generated_tokens


def test_client_samples(client: Any) -> None:
    first = client.generate(PROMPT, max_new_tokens=8, temperature=1.5, seed=7)
    again = client.generate(PROMPT, max_new_tokens=8, temperature=1.5, seed=7)
    assert first.generated_text == again.generated_text
    assert first.details.seed == again.details.seed == 7


def test_client_best_of(client: Any) -> None:
    answer = client.generate(PROMPT, max_new_tokens=8, do_sample=True, best_of=2)
    assert answer.details.best_of_sequences is not None
    (other,) = answer.details.best_of_sequences
    means = [
        sum(token.logprob or 0 for token in each.tokens) / each.generated_tokens for each in (answer.details, other)
    ]
    assert means[0] >= means[1]


def test_client_stops(client: Any) -> None:
    text = client.generate(PROMPT, max_new_tokens=16).generated_text
    stop = text.split()[1]
    answer = client.generate(PROMPT, max_new_tokens=16, stop_sequences=[stop])
    assert answer.details.finish_reason is types.FinishReason.StopSequence
    assert answer.generated_text == text[: text.index(stop)]


def test_client_grammar(client: Any) -> None:
    answer = client.generate(
        PROMPT, max_new_tokens=16, grammar=types.Grammar(type=types.GrammarType.Regex, value="(yes|no)")
    )
    assert answer.generated_text in ("yes", "no")


def test_client_refusals(client: Any, demo: RunningServer) -> None:
    with pytest.raises(client_errors.ValidationError, match="`max_new_tokens` must be strictly positive"):
        client.generate(PROMPT, max_new_tokens=0)
    with pytest.raises(client_errors.ValidationError, match="`max_new_tokens` must be strictly positive"):
        list(client.generate_stream(PROMPT, max_new_tokens=0))
    with pytest.raises(client_errors.ValidationError, match=r"`inputs` tokens \+ `max_new_tokens` must be <= "):
        client.generate(PROMPT, max_new_tokens=10**6)
