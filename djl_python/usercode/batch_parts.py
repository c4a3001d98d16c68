"""DJL's form of a dynamic batch: one Input with keys `batch_000.data`, one Output with entries for each item.

Runs in the worker.
"""

from __future__ import annotations

from collections.abc import Sequence

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


def split(output: Output, size: int) -> list[Output]:
    """Split the answer to a batch into one Output per item, in order.

    An entry is matched by its `batch_000.` key, or by its position if it has none. A property with such a key applies
    to that item ("batch_000.code" is its status), any other to every item.

    Raises:
        HandlerError: a stream, not exactly one entry per item (says what to do), or a status that is no number.
    """
    if output.stream_content is not None:
        raise HandlerError("a batch cannot be streamed: set batch_size=1, or add an entry for each item")
    entries = output.content.size()
    if entries != size:
        raise HandlerError(
            f"Batch output size mismatch, expected: {size}, actual: {entries}. With batch_size > 1 the handler gets "
            "several requests in one Input: take inputs.get_batches(), and add one entry for each with "
            "outputs.add(value, batch_index=i); or set batch_size=1"
        )
    answers = [Output(output.code, output.message) for _ in range(size)]
    for position, (key, value) in enumerate(output.content):
        index, own_key = item_of(key) or (position, key)
        if index >= size:
            raise HandlerError(f"Unexpected batch output key: {key}, the batch has {size} items")
        if not answers[index].content.is_empty():
            raise HandlerError(f"Batch output size mismatch: two entries for item {index} of a batch of {size}")
        answers[index].content.add(own_key, value)
        answers[index].content_type = output.item_content_types.get(index, output.content_type)
    for key, value in output.properties.items():
        if found := item_of(key):
            if found[0] < size:
                _set_property(answers[found[0]], found[1].lower(), value)
        else:
            for answer in answers:
                answer.properties.setdefault(key.lower(), value)
    return answers


def _set_property(answer: Output, key: str, value: str) -> None:
    if key != "code":
        answer.properties[key] = value
    elif value.isdecimal():
        answer.code = int(value)
    else:
        raise HandlerError(f"the code of a batch's item is {value!r}, expected an HTTP status")
