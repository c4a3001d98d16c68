"""The LoRA adapters that vLLM has now. Imported where vLLM is, in the engine process, by `engine` alone."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
from collections.abc import Iterator
from typing import Any, Final

from vllm.lora.request import LoRARequest
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from ...config.adapters import adapter_rank, rank_fault
from ...core.errors import MemoryLoadError, ModelLoadError, ParameterError
from ...core.uses import Uses
from .arguments import SPARE_PLACES

#: The text that vLLM's processes add around a reason.
_AROUND: Final = re.compile(r"^.*Worker failed with error '(.*)', please check the stack trace.*$", re.DOTALL)


def room(lora_config: Any, is_cpu: bool) -> int | None:
    """How many adapters a model may have; None: any number, because vLLM reloads adapters that it has dropped."""
    return None if lora_config is None or not is_cpu else lora_config.max_loras - SPARE_PLACES


class EngineAdapters:
    """Adapters by name and version, each with a number and a name of its own in vLLM.

    vLLM identifies adapters by these: with the same ones, an adapter would reuse another's KV blocks.

    Args:
        most: as `room` says.
    """

    def __init__(self, engine: AsyncLLM, most: int | None) -> None:
        self._engine = engine
        self._most = most
        self._numbers = itertools.count(1)
        self._by_version: dict[tuple[str, int], LoRARequest] = {}
        self._uses = Uses[int]()  # by their numbers

    @contextlib.contextmanager
    def used(self, name: str, version: int) -> Iterator[LoRARequest | None]:
        """The adapter of a sequence, None for "", which is kept until the context ends.

        Raises:
            ParameterError: it has gone.
        """
        if not name:
            yield None
            return
        if (request := self._by_version.get((name, version))) is None:
            raise ParameterError(f"adapter {name} has been unregistered", "")
        with self._uses.of([request.lora_int_id]):
            yield request

    async def add(self, name: str, version: int, directory: str, *, pin: bool = False) -> None:
        """Load an adapter, beside earlier versions of its name.

        Raises:
            ParameterError: vLLM does not take it.
            MemoryLoadError: the engine has no room for another adapter.
        """
        names = {other for other, _ in self._by_version}
        if self._most is not None and len(names - {name}) >= self._most:
            raise MemoryLoadError(
                f"adapter {name}: there is room for {self._most} adapters, and they are there; option.max_loras gives "
                "them more"
            )
        self._check_rank(name, directory)
        number = next(self._numbers)
        made = LoRARequest(f"{number}-{name}", number, directory)
        # Whatever a file of the client's may cause, in vLLM's other process.
        outcome = (await asyncio.gather(self._load(made, pin), return_exceptions=True))[0]
        if isinstance(outcome, BaseException):
            if isinstance(outcome, EngineDeadError) or self._engine.errored:
                raise outcome
            await self._engine.remove_lora(made.lora_int_id)  # it may be half there
            reason = _AROUND.sub(r"\1", str(outcome))
            raise ParameterError(f"vLLM does not take the adapter {name}: {reason}", "src") from outcome
        self._by_version[name, version] = made

    async def remove(self, name: str, version: int) -> None:
        """Forget an adapter, once its sequences have ended; an unknown one is none."""
        if (request := self._by_version.pop((name, version), None)) is not None:
            # vLLM would load it again for a sequence that uses it.
            await self._uses.ended(request.lora_int_id)
            await self._engine.remove_lora(request.lora_int_id)

    def _check_rank(self, name: str, directory: str) -> None:
        try:
            rank = adapter_rank(directory)
        except ModelLoadError as exc:
            raise ParameterError(f"adapter {name}: {exc.message}", "src") from exc
        most = self._engine.vllm_config.lora_config.max_lora_rank
        if rank > most:
            raise ParameterError(rank_fault(name, rank, most), "src")

    async def _load(self, request: LoRARequest, pin: bool) -> None:
        await self._engine.add_lora(request)
        if pin:
            await self._engine.pin_lora(request.lora_int_id)
