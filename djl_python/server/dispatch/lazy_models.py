"""Models that nobody has registered, loaded at the first request that names them (`model_url_pattern`).

Runs in the front end's event loop. First requests that come while a model loads wait for it together. A model that does
not load is unregistered; its requests get the reason, and after a pause the next request tries again.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from ...config import ModelSpec, ModelUrls
from ...core.errors import ModelConflictError, ModelNotFoundError, ServingError, SourceError, UnavailableError
from ..models.registry import ModelRegistry

log = logging.getLogger(__name__)

#: How long a model that did not load is not tried again.
PAUSE_S: Final = 10.0
#: How many failures are remembered: anybody can make up names.
_MAX_FAILURES: Final = 1000


class LazyModels:
    """Loads models on demand.

    Args:
        most: how many of them there may be at a time.
        spec_of: makes a spec of a name and a URL; raises ConfigError.
    """

    def __init__(
        self,
        registry: ModelRegistry,
        urls: ModelUrls,
        most: int,
        spec_of: Callable[[str, str], ModelSpec],
    ) -> None:
        self._registry = registry
        self._urls = urls
        self._most = most
        self._spec_of = spec_of
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._loaded: set[str] = set()
        # When the pause ends, and a factory of the error: an error that is raised repeatedly would collect tracebacks.
        self._failed: OrderedDict[str, tuple[float, Callable[[], ServingError]]] = OrderedDict()

    def has(self, name: str) -> bool:
        """Whether a model of this name is there, so that its requests need not wait for `load`."""
        return name not in self._loading and bool(self._registry.models.versions(name))

    async def load(self, name: str, url: str = "") -> None:
        """Load a model that is not there, or wait until it is loaded for another request.

        Where there is none, the table of models says so, and names those that the sender may use.

        Args:
            url: where the request says that the model is, if it does.

        Raises:
            ModelNotFoundError: the request may not have it loaded.
            UnavailableError: it does not load, or too many are loaded already.
        """
        url = self._urls.url_of(name, url)
        with contextlib.suppress(ModelNotFoundError):
            if (task := self._loading.get(name)) is None:
                self._check(name)
                task = self._loading[name] = asyncio.create_task(self._load(name, url))
                task.add_done_callback(lambda _: self._loading.pop(name))
            await asyncio.wait({task})  # it goes on even if this request does not
            task.result()

    def _check(self, name: str) -> None:
        if name in self._failed:
            until, error = self._failed[name]
            if time.monotonic() < until:
                raise error()
        self._loaded = {name for name in self._loaded if self._registry.models.versions(name)}
        if len(self._loaded | self._loading.keys()) >= self._most:
            raise UnavailableError(
                f"there is no model {name!r}, and {self._most} models are loaded on demand already, which is "
                "max_lazy_models"
            )

    async def _load(self, name: str, url: str) -> None:
        try:
            spec = self._spec_of(name, url)
            config = await asyncio.to_thread(self._registry.read, spec)  # before it is registered: it may not be there
            await self._registry.register(spec, config, stays=False)
        except ModelConflictError:
            return  # somebody has registered it meanwhile
        except ServingError as exc:
            error = functools.partial(self._failure, name, exc.message, exists=not isinstance(exc, SourceError))
            self._failed[name] = (time.monotonic() + PAUSE_S, error)
            self._failed.move_to_end(name)
            if len(self._failed) > _MAX_FAILURES:
                self._failed.popitem(last=False)
            log.log(_level(exc), "model %s is not loaded on demand: %s", name, exc.message)
            raise error() from exc
        log.info("model %s was loaded on demand", name)
        self._failed.pop(name, None)
        self._loaded.add(name)

    def _failure(self, name: str, why: str, *, exists: bool) -> ServingError:
        if not exists:  # clients don't learn where it was looked for
            return ModelNotFoundError(f"there is no model {name!r}")
        error = UnavailableError(f"{why}; the next try is {PAUSE_S:g} s after that one")
        error.retry_after_s = max(1, round(PAUSE_S))
        return error


def _level(why: ServingError) -> int:
    """The log level of a failed load. DEBUG where there is no such model: anybody can make up names."""
    return logging.DEBUG if isinstance(why, SourceError) else logging.WARNING
