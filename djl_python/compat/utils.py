"""What handlers written for DJL import from its `djl_python.utils`, a public name: functions for handlers that batch.

Runs in the worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from ..inputs import Input
from ..outputs import Output, encode_item
from .input_parser import ParsedInput
from .request import Request


class Steps(Protocol):
    """What is used of a `rolling_batch.RollingBatch` here."""

    def reset(self) -> None: ...

    def inference(self, requests: list[Request], /) -> list[dict[str, Any]]: ...


class IdCounter:
    """Numbers from 0."""

    def __init__(self) -> None:
        self.id = 0

    def get_id(self) -> int:
        """The number that `next_id` would return."""
        return self.id

    def next_id(self) -> int:
        """The next number."""
        self.id += 1
        return self.id - 1

    def reset(self) -> None:
        """Begin again with 0."""
        self.id = 0


def is_best_of(parameters: dict[str, Any]) -> bool:
    """Whether the best of several sequences is asked for."""
    return int(parameters.get("best_of") or 1) > 1


def is_multiple_sequences(parameters: dict[str, Any]) -> bool:
    """Whether several sequences are asked for."""
    return int(parameters.get("n") or 1) > 1


def is_beam_search(parameters: dict[str, Any]) -> bool:
    """Whether beam search is asked for."""
    return int(parameters.get("num_beams") or 1) > 1


def wait_till_generation_finished(parameters: dict[str, Any]) -> bool:
    """Whether nothing can be answered before the end, because the best sequence is not known earlier."""
    return is_best_of(parameters) or is_multiple_sequences(parameters) or is_beam_search(parameters)


def find_model_file(model_dir: str | Path, extensions: Sequence[str]) -> str | None:
    """The path of the file `model.<extension>` in a directory, or else of its only file with one of the extensions.

    Raises:
        ValueError: several have, and none is called model.
    """
    files = sorted(path for path in Path(model_dir).iterdir() if path.suffix[1:] in extensions and path.is_file())
    named = [path for path in files if path.stem == "model"]
    if len(named or files) > 1:
        names = ", ".join(path.name for path in files)
        raise ValueError(f"{model_dir} has several model files: {names}; call one of them model{files[0].suffix}")
    return str((named or files)[0]) if files else None


def get_input_details(
    requests: Sequence[Request], errors: dict[int, str], batch: Sequence[Input]
) -> tuple[list[Any], list[int], list[Any] | None]:
    """All prompts of a batch in one list, how many each call has, and the adapters that they name (or None).

    Raises:
        ValueError: the requests' parameters differ.
    """
    prompts: list[Any] = []
    sizes: list[int] = []
    adapters: list[Any] = []
    valid = iter(requests)
    for index in range(len(batch)):
        if index in errors:
            sizes.append(0)
            continue
        request = next(valid).request_input
        if request.server_parameters != requests[0].request_input.server_parameters:
            raise ValueError("the requests of a dynamic batch need the same parameters")
        own: Any = request.input_text
        own = own if isinstance(own, list) else [own]
        prompts += own
        sizes.append(len(own))
        adapters += request.adapters or []
    return prompts, sizes, adapters or None


def rolling_batch_inference(parsed_input: ParsedInput, inputs: Input, outputs: Output, rolling_batch: Steps) -> Output:
    """Run a rolling batch until every request of a call has its answer.

    DJL calls a handler once for each step, and gives the requests of all clients; here a call has its own requests, so
    that the steps are taken here. A single request is streamed as its tokens come; those of a dynamic batch are
    answered together.
    """
    if inputs.get_property("reset_rollingbatch"):
        rolling_batch.reset()
    if not inputs.is_batch() and not parsed_input.errors:
        (request,) = parsed_input.requests
        content_type = request.get_content_type()
        if content_type is not None:
            outputs.add_property("content-type", content_type)
        pieces = (piece for (piece,) in _steps(rolling_batch, parsed_input.requests))
        if request.parameters.get("stream"):
            return outputs.add_stream_content(pieces, output_formatter=encode_item)
        return outputs.add("".join(pieces))
    answers = [""] * len(parsed_input.requests)
    for pieces_of_a_step in _steps(rolling_batch, parsed_input.requests):
        answers = [answer + piece for answer, piece in zip(answers, pieces_of_a_step, strict=True)]
    valid = iter(zip(parsed_input.requests, answers, strict=True))
    for index in range(len(parsed_input.batch)):
        position = index if inputs.is_batch() else None
        if index in parsed_input.errors:
            outputs.error(parsed_input.errors[index], batch_index=position)
            continue
        request, answer = next(valid)
        outputs.add(answer, key="data", batch_index=position)
        if (content_type := request.get_content_type()) is not None:
            outputs.add_property(f"batch_{index:03d}.content-type", content_type)
    return outputs


def _steps(rolling_batch: Steps, requests: Sequence[Request]) -> Iterator[list[str]]:
    """What each step adds to each request's answer; a finished request has ""."""
    open_ones = list(requests)
    try:
        while open_ones:
            results = rolling_batch.inference(open_ones)
            pieces = {id(request): result["data"] for request, result in zip(open_ones, results, strict=True)}
            open_ones = [request for request, result in zip(open_ones, results, strict=True) if not result["last"]]
            yield [pieces.get(id(request), "") for request in requests]
    finally:
        if open_ones:  # the client has gone, or a step has failed: they are nobody's any more
            rolling_batch.reset()


def profile_objects(function: Callable[..., Any]) -> Callable[..., Any]:
    """Nothing: in DJL it logs which objects a function leaves behind. This process's own tools can tell."""
    return function
