from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


_KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
_ITEMS = st.lists(
    st.tuples(st.dictionaries(_KEYS, st.text()), st.lists(st.tuples(_KEYS, st.binary()))), min_size=1, max_size=5
)


@given(_ITEMS)
def test_items_are_what_was_joined(items: list[tuple[dict[str, str], list[tuple[str, bytes]]]]) -> None:
    calls = []
    for properties, content in items:
        call = Input()
        call.properties = dict(properties)
        for key, data in content:
            call.content.add(key, data)
        calls.append(call)
    batches = join(calls).get_batches()
    assert [(one.properties, list(one.content)) for one in batches] == items


@given(st.permutations(range(4)), st.sets(st.integers(0, 3)))
def test_every_item_gets_its_own_entry_or_its_own_error(order: list[int], missing: set[int]) -> None:
    out = Output()
    for index in order:
        if index not in missing:
            out.add(f"answer {index}", batch_index=index)
    if len(missing) == 4:
        with pytest.raises(HandlerError, match="expected: 4, actual: 0"):
            split(out, 4)
        return
    for index, answer in enumerate(split(out, 4)):
        if index in missing:
            assert isinstance(answer, HandlerError)
            assert f"no entry for item {index}" in answer.message
        else:
            assert isinstance(answer, Output)
            assert answer.content.values == [f"answer {index}".encode()]


def answers(out: Output) -> list[Output]:
    """What a batch of two is answered, without errors."""
    outputs = [answer for answer in split(out, 2) if isinstance(answer, Output)]
    assert len(outputs) == 2
    return outputs


def test_split_by_index_in_any_order() -> None:
    out = Output().add("b", batch_index=1).add({"a": 1}, batch_index=0).add_property("X", "1")
    out.add_property("batch_001.Y", "2")
    first, second = answers(out)
    assert (list(first.content), first.content_type) == ([("data", b'{"a":1}')], "application/json")
    assert (list(second.content), second.content_type) == ([("data", b"b")], "text/plain; charset=utf-8")
    assert (first.properties, second.properties) == ({"x": "1"}, {"x": "1", "y": "2"})


def test_split_by_position_and_per_item_codes() -> None:
    first, second = answers(Output(message="fine").add("a").add("b"))
    assert (first.content.values, second.content.values) == ([b"a"], [b"b"])
    assert first.content_type == second.content_type == "text/plain; charset=utf-8"
    assert first.message == second.message == "fine"
    good, bad = answers(Output().add("a", batch_index=0).error("no", code=400, batch_index=1))
    assert (good.code, bad.code, bad.properties["content-type"]) == (200, 400, "application/json")


def test_a_property_of_an_item_that_there_is_not_is_nobodys() -> None:
    outputs = answers(Output().add("a").add("b").add_property("batch_002.x", "1"))
    assert [answer.properties for answer in outputs] == [{}, {}]


def test_an_entry_with_a_batch_index_makes_an_output_a_batchs() -> None:
    assert is_split(Output().add("a").add("b", batch_index=1))
    assert not is_split(Output().add("a").add("b"))


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (Output().add("a"), "expected: 2, actual: 1; no entry says which item it answers"),
        (Output().add("a").add("b").add("c"), "expected: 2, actual: 3; no entry says which item it answers"),
        (Output().add("a", batch_index=0).add("b", batch_index=2), "Unexpected batch output key: batch_002.data"),
        (Output().add_stream_content(iter("ab")), "cannot be streamed"),
    ],
)
def test_an_answer_that_is_nobodys_fails_the_batch(out: Output, message: str) -> None:
    with pytest.raises(HandlerError, match=message):
        split(out, 2)


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (
            Output().add("a", batch_index=0).add("c", batch_index=2),
            "Batch output size mismatch, expected: 3, actual: 2: no entry for item 1 (batch_001)",
        ),
        (
            Output().add("a", batch_index=0).add("b", batch_index=1).add("b", batch_index=1).add("c", batch_index=2),
            "Batch output size mismatch, expected: 3, actual: 4: two entries for item 1 (batch_001)",
        ),
        (
            Output().add("a").add("b").add("c").add_property("batch_001.code", "x"),
            "the code of item 1 is 'x', expected an HTTP status",
        ),
    ],
)
def test_a_wrong_answer_to_an_item_is_its_own_error(out: Output, message: str) -> None:
    first, second, third = split(out, 3)
    assert isinstance(first, Output)
    assert isinstance(third, Output)
    assert (first.content.values, third.content.values) == ([b"a"], [b"c"])
    assert isinstance(second, HandlerError)
    assert second.message == message
