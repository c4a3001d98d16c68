"""The LoRA adapters of a model that is being served: registered, replaced and unregistered at run time.

Runs in the worker's event loop; files are looked for in a thread. Source: DJL's "Adapters Management API".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from djl_python.config import ModelConfig
from djl_python.config.adapters import ADAPTER_FILE
from djl_python.config.sources import fetch_model, scheme_of, shown_url
from djl_python.core.errors import ConfigError, ModelNotFoundError, ParameterError, SourceError
from djl_python.core.uses import Uses
from djl_python.engine.interface import Engine
from djl_python.ipc.protocol import AdapterChange

#: The engine that this project has adapters with, and what turns them on.
SERVED_BY = "option.rolling_batch=vllm with option.enable_lora=true"


class Adapters:
    """Which adapters the model has, which `ModelConfig.adapters` shows whoever parses requests, and who uses them.

    Args:
        config: of the model; its adapters are changed in place.
        folders: where a relative path may lead from: the model's directory, its checkpoint's.
        change_engine: `EngineClient.change_adapter`.
    """

    def __init__(
        self,
        config: ModelConfig,
        engine: Engine[msgspec.Struct],
        folders: Sequence[Path],
        change_engine: Callable[[AdapterChange], Awaitable[None]],
    ) -> None:
        self._config = config
        self._engine = engine
        self._folders = folders
        self._change_engine = change_engine
        self._uses = Uses[str]()

    def used(self, names: Iterable[str]) -> AbstractContextManager[None]:
        """Keep adapters, which a request names, until the context ends."""
        return self._uses.of(names)

    async def change(self, change: AdapterChange) -> None:
        """Make a change. An adapter that goes is refused at once, and gone when its requests have been answered.

        Raises:
            ParameterError: the engine has no adapters, or does not take this one.
            ModelNotFoundError: nothing is at its source.
            MemoryLoadError: there is no room for it.
        """
        adapters = self._config.adapters
        if not self._engine.takes_adapters or not self._config.engine_options.get("enable_lora"):
            raise ParameterError(
                f"LoRA is not enabled: option.rolling_batch={self._engine.name} serves this model without adapters; "
                f"{SERVED_BY} serves them"
            )
        if change.operation == "unregister":
            directory = adapters.pop(change.name, "")
            await self._uses.ended(change.name)
            await self._change_engine(msgspec.structs.replace(change, source=directory))
            return
        found = await asyncio.to_thread(self._found, change.source)
        await self._change_engine(msgspec.structs.replace(change, source=str(found)))
        adapters[change.name] = str(found)

    def _found(self, source: str) -> Path:
        """The directory of an adapter, fetched as a model is where it is elsewhere."""
        try:
            here = (folder / source for folder in self._folders if not scheme_of(source))
            cache_dir = Path(self._config.cache_dir) if self._config.cache_dir else None
            found = next((path for path in here if path.is_dir()), None) or fetch_model(source, cache_dir)
        except SourceError as exc:
            raise ModelNotFoundError(f"src: {exc.message}") from exc
        except ConfigError as exc:
            raise ParameterError(f"src: {exc.message}", "src") from exc
        except OSError as exc:  # a path that is too long, or another user's
            raise ParameterError(f"src: {shown_url(source)}: {exc.strerror}", "src") from exc
        if not (found / ADAPTER_FILE).is_file():
            raise ParameterError(f"src: there is no {ADAPTER_FILE} in {found}: expected what peft saves", "src")
        return found.absolute()
