"""Registers, replaces and unregisters a served model's LoRA adapters at run time.

Runs in the worker's event loop; files are looked for in a thread. Source: DJL's "Adapters Management API".
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from djl_python.config import ModelConfig
from djl_python.config.adapters import ADAPTER_FILE
from djl_python.config.sources import scheme_of, shown_url
from djl_python.core.errors import ConfigError, ModelNotFoundError, ParameterError, SourceError
from djl_python.core.uses import Uses
from djl_python.engine.row import Engine
from djl_python.ipc.protocol import AdapterChange
from djl_python.sources import fetch_model
from djl_python.usercode.adapter_module import adapter_file

from .user_formatters import UserFormatters

_HUB: Final = "hf"


class Adapters:
    """The model's adapters and their users. Parsers of requests see the adapters in `ModelConfig.adapters`.

    Args:
        config: the model's; its adapters are changed in place.
        folders: the bases of relative paths: the model's directory, its checkpoint's.
        formatters: gets those of an adapter's own model.py.
        change_engine: `EngineClient.change_adapter`.
    """

    def __init__(
        self,
        config: ModelConfig,
        engine: Engine[msgspec.Struct],
        folders: Sequence[Path],
        formatters: UserFormatters,
        change_engine: Callable[[AdapterChange], Awaitable[None]],
    ) -> None:
        self._config = config
        self._engine = engine
        self._folders = folders
        self._formatters = formatters
        self._change_engine = change_engine
        self._uses = Uses[tuple[str, int]]()
        self._numbers = itertools.count(1)
        #: The version that requests get now, by name: another mapping after each change.
        self.versions: Mapping[str, int] = dict.fromkeys(config.adapters, 0)

    @contextlib.contextmanager
    def used(self, names: Iterable[str]) -> Iterator[dict[str, int]]:
        """Keep the adapters that a request names, in the versions that they have now, until the context ends.

        Raises:
            ParameterError: one of them has gone.
        """
        used: dict[str, int] = {}
        for name in names:
            if name not in self.versions:
                raise ParameterError(f"adapter {name} has been unregistered", "")
            used[name] = self.versions[name]
        with self._uses.of(used.items()):
            yield used

    async def change(self, change: AdapterChange) -> None:
        """Make a change, and return when the requests that have the adapter which goes have been answered.

        An adapter that is unregistered is refused at once. One that is replaced is kept for the requests that have it,
        while those that come later get its replacement: neither waits for the other.

        Raises:
            ParameterError: the engine takes no adapters, or not this one, or the adapter's code must not run here.
            HandlerError: its model.py fails.
            ModelNotFoundError: nothing is at its source.
            MemoryLoadError: there is no room for it.
        """
        adapters = self._config.adapters
        if not self._engine.takes_adapters:
            raise ParameterError(
                f"option.rolling_batch={self._engine.name} serves this model without adapters; auto and vllm serve them"
            )
        if not self._config.engine_options.get("enable_lora"):
            raise ParameterError("LoRA is not enabled: option.enable_lora=true has this model serve adapters")
        if change.operation == "unregister":
            directory = adapters.pop(change.name, "")
            version = self.versions.get(change.name, 0)
            await self._uses.ended((change.name, version))
            self.versions = {name: one for name, one in self.versions.items() if name != change.name}
            await self._change_engine(msgspec.structs.replace(change, source=directory, version=version))
            self._formatters.put(change.name, None)
            return
        adapter_dir = await asyncio.to_thread(self._directory, change.source)
        formatters = await self._formatters.of_adapter(change.name, adapter_dir)
        version = next(self._numbers)
        try:
            await self._change_engine(msgspec.structs.replace(change, source=str(adapter_dir), version=version))
        except BaseException:
            self._formatters.drop(formatters)
            raise
        # All at once: no request gets one version's form and another's weights.
        before, old = self.versions.get(change.name), adapters.get(change.name, "")
        adapters[change.name] = str(adapter_dir)
        self._formatters.put(change.name, formatters)
        self.versions = {**self.versions, change.name: version}
        if before is not None:
            await self._uses.ended((change.name, before))
            await self._change_engine(AdapterChange(change.id, "unregister", change.name, old, version=before))

    def _directory(self, source: str) -> Path:
        """The directory of an adapter. A remote adapter is fetched first, as models are."""
        try:
            here = (folder / source for folder in self._folders if not scheme_of(source))
            cache_dir = Path(self._config.cache_dir) if self._config.cache_dir else None
            adapter_dir = next((path for path in here if path.is_dir()), None) or fetch_model(source, cache_dir)
        except SourceError as exc:
            raise ModelNotFoundError(f"src: {exc.message}") from exc
        except ConfigError as exc:
            raise ParameterError(f"src: {exc.message}", "src") from exc
        except OSError as exc:  # a path that is too long, or another user's
            raise ParameterError(f"src: {shown_url(source)}: {exc.strerror}", "src") from exc
        if not (adapter_dir / ADAPTER_FILE).is_file():
            raise ParameterError(f"src: there is no {ADAPTER_FILE} in {adapter_dir}: expected what peft saves", "src")
        trusted = scheme_of(source) != _HUB or self._config.option.trust_remote_code
        if not trusted and (file := adapter_file(adapter_dir)) is not None:
            raise ParameterError(f"src: {file}: option.trust_remote_code=true runs code of the hub's", "src")
        return adapter_dir.absolute()
