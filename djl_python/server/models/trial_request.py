"""The request that a model which was loaded again answers before others get there.

Runs in the front end's event loop. It is the file of `option.trial_request`, where that is set. Else the built-in
handler of generated text generates a token; a handler of the user's has had its first, empty call when it was loaded,
and what else it takes only its author knows.
"""

from __future__ import annotations

import asyncio
import mimetypes
from pathlib import Path
from typing import Final

from ...config import ModelConfig
from ...core.errors import ModelLoadError, ServingError
from ...formats.json_framing import JSON
from ...ipc.protocol import Call, Trace
from ...outputs import BYTES
from ...usercode.module import user_file
from .flights import Flight, next_id
from .served_model import ServedModel

_ONE_TOKEN: Final = b'{"inputs": "Hello", "parameters": {"max_new_tokens": 1}}'
_SHOWN_BYTES: Final = 400  # of an answer that is none


async def try_request(model: ServedModel) -> None:
    """Have a loaded model answer its request, if it has one.

    Raises:
        ModelLoadError: it does not answer well, or not within predict_timeout.
    """
    request = await asyncio.to_thread(_request_of, model)
    if request is None:
        return
    body, content_type = request
    call = Call(
        id=next_id(),
        dialect="lmi",
        operation="predict",
        method="POST",
        path="/invocations",
        query=(),
        headers={"content-type": content_type, "x-request-id": "trial"},
        body=body,
    )
    asked = _Asked(model)
    asked.flight = model.pool.submit(call, asked)
    try:
        async with asyncio.timeout(model.config.option.predict_timeout):
            problem = await asked.problem
    except TimeoutError:
        problem = "no whole answer within predict_timeout"
    finally:
        if not asked.problem.done() or asked.problem.cancelled():
            model.pool.cancel(asked.flight, "timeout")
    if problem:
        raise ModelLoadError(f"model {model.config.name!r} loaded, but its trial request failed: {problem}")


def _request_of(model: ServedModel) -> tuple[bytes, str] | None:
    """A body and its content type. Reads a file."""
    config: ModelConfig = model.config
    if config.option.trial_request:
        path = Path(config.path, config.option.trial_request)
        try:
            return path.read_bytes(), mimetypes.guess_type(path.name)[0] or BYTES
        except OSError as exc:
            raise ModelLoadError(f"option.trial_request={path.name}: {path}: {exc.strerror}") from exc
    if model.engine is None or user_file(config):
        return None
    return _ONE_TOKEN, JSON


class _Asked:
    """The `Client` of the request. `problem` is done at its end: "" after a good answer, or what is wrong with it."""

    flight: Flight

    def __init__(self, model: ServedModel) -> None:
        self.problem: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._model = model
        self._status = 0
        self._answer = b""

    def sent(self) -> None:
        """Nothing to release."""

    def start(self, status: int, headers: dict[str, str]) -> None:
        self._status = status

    def body(self, data: bytes, last: bool) -> None:
        self._answer = (self._answer + data)[:_SHOWN_BYTES]
        if last:
            answer = self._answer.decode(errors="replace").strip()
            self._end("" if self._status < 400 else f"{self._status} {answer}")
        else:
            self._model.pool.taken(self.flight, len(data))

    def noted(self, notes: Trace) -> None:
        """It is not traced."""

    def break_off(self) -> None:
        self._end("its answer broke off")

    def fail(self, error: ServingError) -> None:
        self._end(error.message)

    def _end(self, problem: str) -> None:
        if not self.problem.done():
            self.problem.set_result(problem)
