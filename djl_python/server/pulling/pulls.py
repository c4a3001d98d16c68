"""Downloads models and registers them: what Ollama's clients call a pull.

Runs in the front end's event loop, each download in a thread of its own: it may take hours, and must neither keep
asyncio's own threads from other work nor this process from ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, Final

from ...config import ModelSpec
from ...config.environment import cache_directory
from ...config.sources import shown_url
from ...core.errors import (
    ConfigError,
    ModelConflictError,
    ModelNotFoundError,
    ParameterError,
    ServingError,
    SourceError,
    UnavailableError,
)
from ...core.model_files.download_part import DownloadPart, DownloadProgress
from ...sources import pull as download
from ..models.registry import ModelRegistry

log = logging.getLogger(__name__)

#: Downloads at a time; more of them would share one network.
_AT_ONCE: Final = 2


class Pulls:
    """The downloads that go on, and those who wait for them.

    Args:
        fetch: downloads what a URL names, in a thread; raises ConfigError.
    """

    def __init__(self, registry: ModelRegistry, fetch: Callable[[str, DownloadProgress], Any]) -> None:
        self._registry = registry
        self._fetch = fetch
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._going_on: dict[str, _Pull] = {}

    def pull(self, spec: ModelSpec) -> AsyncIterator[DownloadPart]:
        """Download a model and register it under the spec's name; see `ServerView.pull`.

        Raises:
            ModelConflictError: at once.
            ModelNotFoundError, ParameterError, UnavailableError: from the iterator.
        """
        pull = self._going_on.get(spec.name)
        self._check_name(spec, pull)
        if pull is None:
            pull = self._going_on[spec.name] = _Pull(spec)
            pull.begin(self._work(pull))
            pull.task.add_done_callback(lambda _: self._going_on.pop(spec.name))
        return pull.parts()

    def close(self) -> None:
        """The server is about to end: those who wait get UnavailableError. What has come stays for the next pull."""
        for pull in self._going_on.values():
            pull.leave()

    def _check_name(self, spec: ModelSpec, pull: _Pull | None) -> None:
        """Refuse the name of another model."""
        urls = [] if pull is None else [pull.spec.url]
        if self._registry.models.versions(spec.name):
            urls += [registered.spec.url for registered in self._registry.describe(spec.name)]
        if urls and spec.url not in urls:
            raise ModelConflictError(f"model {spec.name!r} is another one, of {shown_url(urls[0])}")

    async def _work(self, pull: _Pull) -> None:
        spec, loop = pull.spec, asyncio.get_running_loop()

        def fetch() -> None:
            self._fetch(spec.url, lambda part: _call(loop, functools.partial(pull.told, part)))

        try:
            async with self._turns:
                await _in_thread(fetch)
            if self._registry.models.versions(spec.name):
                return  # it was here before
            config = await asyncio.to_thread(self._registry.read, spec)
        except SourceError as exc:
            raise ModelNotFoundError(exc.message) from exc
        except ConfigError as exc:
            raise ParameterError(exc.message, "model") from exc
        await self._registry.register(spec, config, on_request=True)


def fetch_for_pull(url: str, progress: DownloadProgress) -> None:
    """Download what a URL names, to where models are loaded from. Blocks.

    Raises:
        ConfigError: see `sources.pull`.
    """
    cache_dir = cache_directory()
    download(url, Path(cache_dir) if cache_dir else None, progress=progress)


class _Pull:
    """A download that goes on."""

    task: asyncio.Task[None]

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self._parts: dict[str, DownloadPart] = {}
        self._changed = asyncio.Event()
        self._left = False

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        self.task = asyncio.create_task(work)
        self.task.add_done_callback(self._ended)

    def told(self, part: DownloadPart) -> None:
        self._parts[part.digest] = part
        self._wake()

    def leave(self) -> None:
        """Let nobody wait for its end any more."""
        self._left = True
        self._wake()

    async def parts(self) -> AsyncIterator[DownloadPart]:
        """The parts as they change; raises what has ended the pull."""
        told: dict[str, DownloadPart] = {}
        while True:
            changed, ended = self._changed, self.task.done()
            for digest, part in list(self._parts.items()):
                if told.get(digest) != part:
                    told[digest] = part
                    yield part
            if ended:
                break
            if self._left:
                raise UnavailableError("the server is shutting down")
            await changed.wait()
        self.task.result()

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:  # perhaps nobody waits any more
            log.warning("model %r can't be pulled: %s", self.spec.name, error)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


async def _in_thread(work: Callable[[], None]) -> None:
    """Do some work in a thread that ends with the process. Raises its ConfigError."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def run() -> None:
        failure: ServingError | None = ServingError("an unexpected error, which the server's log shows")
        try:
            work()
            failure = None
        except ConfigError as exc:
            failure = exc
        finally:
            _call(loop, functools.partial(_settle, done, failure))

    threading.Thread(target=run, name="pull", daemon=True).start()
    await done


def _settle(done: asyncio.Future[None], failure: ServingError | None) -> None:
    if done.cancelled():
        return
    if failure is None:
        done.set_result(None)
    else:
        done.set_exception(failure)


def _call(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    """Call a function in the event loop, from a thread, unless the loop has ended, and the server with it."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function)
