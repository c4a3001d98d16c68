"""DJL's functions for handlers that batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from djl_python import utils
from djl_python.inputs import Input
from djl_python.request import Request
from djl_python.request_io import TextInput


def test_numbers() -> None:
    counter = utils.IdCounter()
    assert [counter.next_id(), counter.next_id(), counter.get_id()] == [0, 1, 2]
    counter.reset()
    assert counter.next_id() == 0


def test_several_choices_wait_for_the_end() -> None:
    for given in ({"best_of": 2}, {"n": 2}, {"num_beams": 2}):
        assert utils.wait_till_generation_finished(given)
    assert not utils.wait_till_generation_finished({"best_of": 1, "n": None})


def test_model_files(tmp_path: Path) -> None:
    assert utils.find_model_file(tmp_path, ["pkl"]) is None
    (tmp_path / "a.pkl").touch()
    assert utils.find_model_file(tmp_path, ["pkl"]) == str(tmp_path / "a.pkl")
    (tmp_path / "b.pickle").touch()
    with pytest.raises(ValueError, match=r"a.pkl, b.pickle; call one of them model.pkl"):
        utils.find_model_file(tmp_path, ["pkl", "pickle"])
    (tmp_path / "model.pickle").touch()
    assert utils.find_model_file(str(tmp_path), ["pkl", "pickle"]) == str(tmp_path / "model.pickle")


def request(text: Any, **parameters: Any) -> Request:
    return Request(TextInput(0, input_text=text, server_parameters=parameters))


def test_the_inputs_of_a_batch() -> None:
    batch = [Input(), Input(), Input()]
    requests = [request(["a", "b"], top_k=1), request("c", top_k=1)]
    assert utils.get_input_details(requests, {1: "wrong"}, batch) == (["a", "b", "c"], [2, 0, 1], None)
    with pytest.raises(ValueError, match="the same parameters"):
        utils.get_input_details([request("a"), request("b", top_k=1)], {}, batch[:2])


def test_profiling_changes_nothing() -> None:
    assert utils.profile_objects(len) is len
