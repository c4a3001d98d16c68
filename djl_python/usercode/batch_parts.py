"""DJL's form of a dynamic batch: one Input with keys `batch_000.data`, one Output with entries for each item.

Runs in the worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..core.errors import HandlerError
from ..inputs import BATCH_SIZE, Input
from ..outputs import Output
from .batch_keys import batch_key, item_of


def join(inputs: Sequence[Input]) -> Input:
    """Join calls to one Input: `batch_size`, and every property and content entry under `batch_000.<key>`."""
    first = inputs[0]
    batch = Input()
    batch.function_name = first.function_name
    batch.operation, batch.dialect, batch.path = first.operation, first.dialect, first.path
    batch.model_name, batch.model_version = first.model_name, first.model_version
    batch.request_id = ", ".join(item.request_id for item in inputs)
    batch.properties[BATCH_SIZE] = str(len(inputs))
    batch.bodies = tuple(item.body for item in inputs)
    for index, item in enumerate(inputs):
        for key, value in item.properties.items():
            batch.properties[batch_key(key, index)] = value
        for content_key, data in item.content:
            batch.content.add(batch_key(content_key or "data", index), data)
    return batch


def is_split(output: Output) -> bool:
    """Whether any key of the output's entries says which item of a batch the entry answers."""
    return any(item_of(key) for key, _ in output.content)


def split(output: Output, size: int) -> list[Output | HandlerError]:
    """Split the answer to a batch into one Output per item, in order; an item without one gets the error that says so.

    An entry is matched by its `batch_000.` key, or by its position if it has none. A property with such a key applies
    to that item ("batch_000.code" is its status), any other to every item.

    Raises:
        HandlerError: a stream, an entry of an item that there is not, or, where no entry has a key, not as many as
            items: nothing tells whose answer is missing.
    """
    if output.stream_content is not None:
        raise HandlerError("a batch cannot be streamed: set batch_size=1, or add an entry for each item")
    entries = output.content.size()
    mismatch = f"Batch output size mismatch, expected: {size}, actual: {entries}"
    if entries != size and not is_split(output):
        raise HandlerError(
            f"{mismatch}; no entry says which item it answers. With batch_size > 1 the handler gets several requests "
            "in one Input: take inputs.get_batches(), and add one entry for each with "
            "outputs.add(value, batch_index=i); or set batch_size=1"
        )
    answers = [Output(output.code, output.message) for _ in range(size)]
    failed: dict[int, HandlerError] = {}
    for position, (key, value) in enumerate(output.content):
        index, own_key = item_of(key) or (position, key)
        if index >= size:
            raise HandlerError(f"Unexpected batch output key: {key}, the batch has {size} items (0 to {size - 1})")
        if not answers[index].content.is_empty():
            failed[index] = HandlerError(f"{mismatch}: two entries for item {index} (batch_{index:03d})")
        answers[index].content.add(own_key, value)
        answers[index].content_type = output.item_content_types.get(index, output.content_type)
    for index, answer in enumerate(answers):
        if answer.content.is_empty():
            failed[index] = HandlerError(f"{mismatch}: no entry for item {index} (batch_{index:03d})")
    _distribute_properties(output.properties, answers, failed)
    return [failed.get(index, answer) for index, answer in enumerate(answers)]


def _distribute_properties(
    properties: Mapping[str, str], answers: Sequence[Output], failed: dict[int, HandlerError]
) -> None:
    """Set properties with an item's key on its answer, and the others on every answer. Adds to `failed`."""
    for key, value in properties.items():
        indexed_key = item_of(key)
        if indexed_key is None:
            for answer in answers:
                answer.properties.setdefault(key.lower(), value)
        elif (index := indexed_key[0]) < len(answers):
            own_key = indexed_key[1].lower()
            if own_key != "code":
                answers[index].properties[own_key] = value
            elif value.isdecimal():
                answers[index].code = int(value)
            else:
                failed[index] = HandlerError(f"the code of item {index} is {value!r}, expected an HTTP status")
