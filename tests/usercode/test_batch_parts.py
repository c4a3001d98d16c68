from __future__ import annotations

import pytest

from djl_python import Input, Output
from djl_python.core.errors import HandlerError
from djl_python.usercode.batch_parts import is_split, join, split


def item(number: int) -> Input:
    made = Input()
    made.properties = {"content-type": "text/plain", "x-request-id": f"r{number}"}
    made.content.add("q", b"1")
    made.content.add("data", str(number).encode())
    made.content.add(None, b"unnamed")
    made.body = f"q=1&data={number}".encode()
    made.request_id = f"r{number}"
    made.function_name, made.operation, made.dialect, made.path = "handle", "predict", "lmi", "/predictions/m"
    made.model_name, made.model_version = "m", "2"
    return made


def test_join_is_undone_by_get_batches() -> None:
    batch = join([item(0), item(1)])
    assert batch.get_batch_size() == 2
    names = [f"batch_{index}.{name}" for index in ("000", "001") for name in ("q", "data", "data")]
    assert batch.content.get_keys() == names
    assert batch.get_property("batch_001.x-request-id") == "r1"
    assert [one.get_as_string() for one in batch.get_batches()] == ["0", "1"]
    assert [one.request_id for one in batch.get_batches()] == ["r0", "r1"]
    for one in (batch, *batch.get_batches()):
        assert (one.function_name, one.operation, one.dialect, one.path) == (
            "handle",
            "predict",
            "lmi",
            "/predictions/m",
        )
        assert (one.model_name, one.model_version) == ("m", "2")
    assert batch.request_id == "r0, r1"
    assert [one.body for one in batch.get_batches()] == [b"q=1&data=0", b"q=1&data=1"]


def test_split_by_index_in_any_order() -> None:
    out = Output().add("b", batch_index=1).add({"a": 1}, batch_index=0).add_property("X", "1")
    out.add_property("batch_001.Y", "2")
    first, second = split(out, 2)
    assert (list(first.content), first.content_type) == ([("data", b'{"a":1}')], "application/json")
    assert (list(second.content), second.content_type) == ([("data", b"b")], "text/plain; charset=utf-8")
    assert (first.properties, second.properties) == ({"x": "1"}, {"x": "1", "y": "2"})


def test_split_by_position_and_per_item_codes() -> None:
    first, second = split(Output(message="fine").add("a").add("b"), 2)
    assert (first.content.values, second.content.values) == ([b"a"], [b"b"])
    assert first.content_type == second.content_type == "text/plain; charset=utf-8"
    assert first.message == second.message == "fine"
    good, bad = split(Output().add("a", batch_index=0).error("no", code=400, batch_index=1), 2)
    assert (good.code, bad.code, bad.properties["content-type"]) == (200, 400, "application/json")


def test_a_property_of_an_item_that_there_is_not_is_nobodys() -> None:
    answers = split(Output().add("a").add("b").add_property("batch_002.x", "1"), 2)
    assert [answer.properties for answer in answers] == [{}, {}]


def test_one_entry_with_an_index_makes_an_answer_a_batchs() -> None:
    assert is_split(Output().add("a").add("b", batch_index=1))
    assert not is_split(Output().add("a").add("b"))


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (Output().add("a"), "Batch output size mismatch, expected: 2, actual: 1"),
        (Output().add("a", batch_index=0).add("b", batch_index=0), "two entries for item 0"),
        (Output().add("a", batch_index=0).add("b", batch_index=2), "Unexpected batch output key: batch_002.data"),
        (Output().add_stream_content(iter("ab")), "cannot be streamed"),
        (Output().add("a").add("b").add_property("batch_000.code", "x"), "expected an HTTP status"),
    ],
)
def test_split_says_what_is_wrong(out: Output, message: str) -> None:
    with pytest.raises(HandlerError, match=message):
        split(out, 2)
