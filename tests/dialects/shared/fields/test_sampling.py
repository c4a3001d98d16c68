from __future__ import annotations

from types import SimpleNamespace

from djl_python.dialects.shared.fields.sampling import DrawFields

TABLE = DrawFields({"temperature": (1.0,), "top_k": (-1, 0), "top_p": ()}, seeds=("seed", "random_seed"))


def fields(**given: float) -> SimpleNamespace:
    return SimpleNamespace(**{**dict.fromkeys(("temperature", "top_k", "top_p", "seed", "random_seed")), **given})


def test_neutral_values_ask_for_nothing() -> None:
    assert TABLE.asked(fields()) == TABLE.asked(fields(temperature=1, top_k=-1, seed=3)) == []
    assert TABLE.asked(fields(temperature=0.5, top_k=1, top_p=1.0)) == ["temperature", "top_k", "top_p"]


def test_a_draw_takes_the_sampling_parameters_that_are_set() -> None:
    assert TABLE.given(fields(temperature=1.0, top_k=-1, seed=3)) == {"temperature": 1.0, "top_k": 0}
    assert TABLE.given(fields(top_k=5)) == {"top_k": 5}


def test_a_greedy_request_ignores_sampling_parameters() -> None:
    assert TABLE.ignored(fields(temperature=1.0, top_k=5, random_seed=0)) == ["top_k", "random_seed"]
