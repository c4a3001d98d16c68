"""The user's function or class as a Handler.

Runs in the worker: coroutine functions and asynchronous generators in the event loop, everything else in the
handler's thread. A synchronous handler answers one call (or one batch) at a time, its stream included, as in DJL; an
asynchronous one answers many.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, Final

from ..config import ModelConfig
from ..core import logs
from ..core.errors import HandlerError, ModelLoadError, ParameterError, PayloadError
from ..handler import Context, Handler, Metrics, Reply
from ..inputs import Input
from ..ipc.protocol import AdapterChange
from ..outputs import Output
from ..usercode.batch_keys import item_of
from ..usercode.batch_parts import is_split, join, split
from ..usercode.batching import DynamicBatcher
from ..usercode.errors import contained, is_cancellation
from .answers import invalid_output, send
from .thread import HandlerThread

log = logging.getLogger(__name__)

MAX_ASYNC_CALLS: Final = 1024


class UserHandler(Handler):
    """A `handle(inputs)` function, or a class with `handle` and optionally `load(context)` and `close()`.

    A function is called once with empty content when the model loads, which is DJL's contract. A class is not: it
    has `load`.

    Attributes:
        target: the function or class.
    """

    def __init__(self, target: Callable[..., Any] | type, thread: HandlerThread) -> None:
        self.target = target
        self._thread = thread
        self._turn: contextlib.AbstractAsyncContextManager[Any] = asyncio.Lock()
        self._batcher: DynamicBatcher[Input, Any] | None = None
        self._handle: Callable[[Input], Any] = target
        self._close: Callable[[], Any] | None = None
        self._said_nothing = False
        self._metrics: Metrics
        self._context: Context

    async def load(self, context: Context) -> None:
        """Instantiate the class and load the object, or make the function's first, empty call.

        Raises:
            ModelLoadError: the first call was answered with an error.
        """
        if inspect.isclass(self.target):
            instance: Any = await self._thread.run((), self.target)
            if (load := getattr(instance, "load", None)) is not None:
                await self._run((), load, context)
            self._handle = instance.handle
            self._close = getattr(instance, "close", None)
        self._metrics = context.metrics
        self._set_capacity(context.config)
        if not inspect.isclass(self.target):
            await self._first_call(context)
        self._context = context
        for name, directory in context.config.adapters.items():
            if self._adapter_function("register") is not None:
                await self.change_adapter(AdapterChange(0, "register", name, directory))

    async def serve(self, inputs: Input, reply: Reply) -> None:
        """Answer one call."""
        if self._batcher is not None:
            answer = await self._batcher.submit(inputs)
            try:
                async with self._turn:
                    await self._send(answer, inputs, reply)
            finally:
                self._finalize(answer)
        else:
            async with self._turn:
                answer = await self._run((inputs,), self._handle, inputs)
                self._say_if_nothing_is_returned(answer, [inputs])
                try:
                    await self._send(_of_one_call(answer), inputs, reply)
                finally:
                    self._finalize(answer)

    async def change_adapter(self, change: AdapterChange) -> None:
        """Call the user's `register_adapter(inputs)`, `update_adapter` or `unregister_adapter`, as DJL does.

        Its properties have the adapter's name and src, its content each parameter of the request.

        Raises:
            ParameterError: there is no such function.
            HandlerError: it answered with an error.
        """
        function = self._adapter_function(change.operation)
        if function is None:
            raise ParameterError(
                f"this model's code has no {change.operation}_adapter(inputs); it may have one, and "
                "option.enable_lora=true serves LoRA adapters of a language model without code"
            )
        inputs = Input()
        inputs.function_name = f"{change.operation}_adapter"
        inputs.model_name, inputs.model_version = self._context.name, self._context.version
        own = {"name": change.name, "src": change.source}
        inputs.properties = {**self._context.properties, **own}
        for key, value in {**own, **change.options}.items():
            inputs.content.add(key, value.encode())
        async with self._turn:
            answer = await self._run((), function, inputs)
        if isinstance(answer, Output) and answer.code >= 300:
            refusal = b" ".join(answer.content.values).decode(errors="replace").strip()
            raise HandlerError(f"{inputs.function_name} answered with code {answer.code}: {refusal or answer.message}")

    def _adapter_function(self, operation: str) -> Callable[[Input], Any] | None:
        """The user's function for it, in the class or the module; without a function for updates, an update is a
        registration.
        """
        places = (getattr(self._handle, "__self__", None), inspect.getmodule(self.target))
        names = [f"{operation}_adapter", *(["register_adapter"] if operation == "update" else [])]
        candidates = (getattr(place, name, None) for name in names for place in places)
        return next((function for function in candidates if callable(function)), None)

    async def close(self) -> None:
        """Stop batching, and call the object's `close`."""
        if self._batcher is not None:
            await self._batcher.close()
        if self._close is not None:
            await self._run((), self._close)

    # ------------------------------------------------------------------------------------ inside

    def _set_capacity(self, config: ModelConfig) -> None:
        serving = config.serving
        if _is_async(self._handle):
            self._turn = contextlib.nullcontext()
            self.capacity = min(serving.job_queue_size, MAX_ASYNC_CALLS)
        else:
            # Not more than run at once: a call in the front end's queue goes to the first free worker, outlives this
            # worker, and its predict_timeout has not begun.
            self.capacity = serving.batch_size
        if serving.batch_size > 1:
            self._batcher = DynamicBatcher(
                self._run_batch, serving.batch_size, serving.max_batch_delay_ms, self._finalize
            )

    async def _run(self, owners: Sequence[Input], function: Callable[..., Any], *args: Any) -> Any:
        """The result of a user function, run in the loop if it is asynchronous, otherwise in the thread."""
        result = function(*args) if _is_async(function) else await self._thread.run(owners, function, *args)
        if not inspect.isawaitable(result):
            return result
        try:
            return await result
        except BaseException as exc:
            if isinstance(exc, Exception) or is_cancellation(exc):
                raise
            raise contained(exc) from exc

    async def _run_batch(self, items: Sequence[Input]) -> list[Any]:
        async with self._turn:
            logs.work_on(",".join(item.request_id for item in items))
            self._metrics.observe("batch_size", len(items))
            result = await self._run(items, self._handle, items[0] if len(items) == 1 else join(items))
        self._say_if_nothing_is_returned(result, items)
        if result is None:
            return [None] * len(items)
        if len(items) == 1 and not (isinstance(result, Output) and is_split(result)):
            return [result]
        try:
            if not isinstance(result, Output):
                raise invalid_output(result, "an Output for the batch")
            if result.code < 300:
                return list(split(result, len(items)))
        except HandlerError as exc:
            return [exc] * len(items)
        finally:
            self._finalize(result)
        # The handler caught an error and failed the whole batch: raise, so that the items are run one by one.
        raise HandlerError(f"the handler answered a batch with code {result.code}")

    async def _send(self, answer: Any, inputs: Input, reply: Reply) -> None:
        def iterate(items: Iterable[Any]) -> AsyncIterator[Any]:
            return self._thread.iterate((inputs,), items)

        await send(answer, reply, iterate)

    def _say_if_nothing_is_returned(self, answer: Any, items: Sequence[Input]) -> None:
        """Log once that a request with content got no answer: a `return` may have been forgotten."""
        if answer is None and not self._said_nothing and not all(item.is_empty() for item in items):
            self._said_nothing = True
            log.warning(
                "%s() returned None for a request that has content, which is answered with 204 and no body: "
                "is a `return` missing? (told once)",
                getattr(self._handle, "__name__", "handle"),
            )

    def _finalize(self, answer: Any) -> None:
        if isinstance(answer, Output) and answer.has_finalizer:
            self._thread.post(answer.execute_finalize)

    async def _first_call(self, context: Context) -> None:
        inputs = Input()
        inputs.function_name = context.config.option.handler
        inputs.model_name, inputs.model_version = context.name, context.version
        inputs.properties = dict(context.properties)
        try:
            result = await self._run((), self._handle, inputs)
            if hasattr(result, "__aiter__"):
                async for _ in result:
                    pass
            elif inspect.isgenerator(result):
                await self._thread.run((), list, result)
        except PayloadError as exc:
            name = context.config.option.handler
            raise ModelLoadError(
                f"{name}() failed at its first call, which has no content and loads the model ({exc}): begin it with "
                "`if inputs.is_empty(): return None`"
            ) from exc
        if isinstance(result, Output) and result.code >= 300:
            body = b" ".join(result.content.values).decode(errors="replace").strip()
            raise ModelLoadError(
                f"the first, empty call was answered with code {result.code}: {body or result.message}"
            )


def _of_one_call(answer: Any) -> Any:
    """The answer to a single call, from a handler that answers it as the first item of a batch."""
    if not isinstance(answer, Output) or answer.stream_content is not None or not is_split(answer):
        return answer
    if any((item_of(key) or (0, ""))[0] for key in [*answer.content.keys, *answer.properties]):
        return answer
    (own,) = split(answer, 1)
    return answer if isinstance(own, HandlerError) else own


def _is_async(function: Callable[..., Any]) -> bool:
    """Whether a call only makes a coroutine or an asynchronous generator, and runs no user code yet."""
    candidates = (function, getattr(function, "__call__", None))  # noqa: B004  (an object with an async __call__)
    return any(
        inspect.iscoroutinefunction(candidate) or inspect.isasyncgenfunction(candidate) for candidate in candidates
    )
