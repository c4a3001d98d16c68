"""The request that a reloaded model has to answer before it serves.

Runs in the front end's event loop. It is the file of `option.trial_request`, where that is set. Otherwise the built-in
text generation handler generates a token. A user's handler has had its first, empty call when it was loaded; only its
author knows what else it takes. The dialect of /invocations formats the answer; without such a dialect, nothing is
tried.
"""

from __future__ import annotations

import asyncio
import mimetypes
from pathlib import Path
from typing import Final

from ...config import ModelConfig
from ...core.errors import ModelLoadError, ServingError
from ...dialects import all_dialects
from ...formats.json_framing import JSON
from ...ipc.protocol import Call, Trace, UsageReport
from ...outputs import BYTES
from ...usercode.module import user_file
from .pool.flights import Flight, next_id
from .served_model import ServedModel

_PATH: Final = "/invocations"
_ONE_TOKEN: Final = b'{"inputs": "Hello", "parameters": {"max_new_tokens": 1}}'
_SHOWN_BYTES: Final = 400  # of an answer that is none


async def try_request(model: ServedModel) -> None:
    """Have a loaded model answer its request, if it has one.

    Raises:
        ModelLoadError: its answer is an error, or does not come within predict_timeout.
    """
    request = await asyncio.to_thread(_request_of, model)
    route = _route()
    if request is None or route is None:
        return
    body, content_type = request
    dialect, operation = route
    call = Call(
        id=next_id(),
        dialect=dialect,
        operation=operation,
        method="POST",
        path=_PATH,
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


def _route() -> tuple[str, str] | None:
    """The dialect that has `_PATH`, by name, and its operation there."""
    rows = ((dialect.name, route) for dialect in all_dialects().values() for route in dialect.routes)
    return next(((name, route.operation) for name, route in rows if route.path == _PATH), None)


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
    """The `Client` of the request. `problem` is done at its end: "" after a good answer, or its fault."""

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

    def used(self, usage: UsageReport) -> None:
        """It is not counted."""

    def break_off(self) -> None:
        self._end("its answer broke off")

    def fail(self, error: ServingError) -> None:
        self._end(error.message)

    def _end(self, problem: str) -> None:
        if not self.problem.done():
            self.problem.set_result(problem)
