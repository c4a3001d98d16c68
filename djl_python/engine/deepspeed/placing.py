"""Has DeepSpeed place a model's weights, in the best way that keeps the model's logits. Engine process, once.

Its kernels and its automatic tensor parallelism guess a model's structure from the names of its modules. So the model's
own logits after a short text are computed first, in the host's memory, and the changed model must reproduce them; else
the next way is tried, with a remark for the model's owner. The last way is ZeRO, which takes any model.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import deepspeed
import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from ...core.errors import ModelLoadError
from ..call_errors import CALL_ERRORS
from ..devices.placement import OnDevices, Placed, Read
from ..devices.tensor_parallel import join_alone
from ..runner.file_mapping import releasing_after_use
from ..runner.probe import distances, read_in_pieces
from ..settings import BuiltInSettings
from ..torch_backend.one_text_runner import OneTextRunner
from .configuration import PartitionPlan
from .extensions import load_kernels, logging_prints, prepare_process
from .partitioning import partitioned

log = logging.getLogger(__name__)

#: Tokens of the text that a model is tried on.
_TOKENS: Final = 24
#: How far its logits may then be from its own (`opening.probe.distances`); a weight that is divided wrongly costs 0.1
#: and more.
_MOST_IN_FP32: Final = 5e-4
_MOST: Final = 0.02
#: How weights are partitioned where a model can't be divided: on the devices themselves.
_PARTITIONED: Final = {"zero_optimization": {"stage": 3}}


@dataclass(frozen=True)
class _Way:
    """One way to lay out a model that is whole, in the host's memory.

    Attributes:
        name: in words, as in "NAME can't be used".
        lay_out_: changes the model, on this process's device.
    """

    name: str
    lay_out_: Callable[[Any], None]
    keeps_one_text: bool = False


class DeepSpeedPlacement:
    """A `devices.placement.DevicePlacement`, for the settings' `placement_options`, which are a `PartitionPlan`."""

    def __init__(self, settings: BuiltInSettings, device: torch.device) -> None:
        self._settings, self._device = settings, device
        self._plan = msgspec.convert(settings.placement_options, PartitionPlan)

    def place(self, read: Read, dtype: torch.dtype | None) -> Placed:
        join_alone(self._device)
        prepare_process()
        with logging_prints():
            if self._plan.zero:
                return partitioned(read, dtype, self._settings, self._device, self._plan.zero)
            return self._changed(read, dtype)

    def _changed(self, read: Read, dtype: torch.dtype | None) -> Placed:
        """The model as the first way that is right has changed it."""
        expected: Tensor | None = None
        remarks: list[str] = []
        for way in self._ways():
            model = read({})
            if not remarks and dist.get_rank() == 0:
                expected = self._logits(model)
            reason = self._tried(way, model, expected)
            if not reason:
                return Placed(model, "; ".join(remarks), way.keeps_one_text, is_whole=False)
            remarks.append(f"{way.name} can't be used for {type(model).__name__}: {reason}")
            del model
        if self._settings.tensor_parallel_degree == 1:
            return replace(OnDevices(self._settings, self._device).place(read, dtype), offloaded="; ".join(remarks))
        placed = partitioned(read, dtype, self._settings, self._device, _PARTITIONED)
        return replace(placed, offloaded="; ".join([*remarks, placed.offloaded]))

    def _ways(self) -> Iterator[_Way]:
        if self._plan.kernels is not None:
            yield _Way("DeepSpeed's kernels", self._inject_, keeps_one_text=True)
        if self._settings.tensor_parallel_degree > 1:
            yield _Way("DeepSpeed's tensor parallelism", self._divide_)

    def _divide_(self, model: Any) -> None:
        deepspeed.init_inference(model, config=self._common(model))

    def _inject_(self, model: Any) -> None:
        load_kernels()
        kernels = {"max_out_tokens": self._settings.max_model_len} | (self._plan.kernels or {})
        deepspeed.init_inference(
            model, config=self._common(model) | kernels | {"replace_with_kernel_inject": True, "return_tuple": False}
        )

    def _common(self, model: Any) -> dict[str, Any]:
        degree = self._settings.tensor_parallel_degree
        return {"dtype": model.dtype, "tensor_parallel": {"tp_size": degree, **self._plan.tensor_parallel}}

    def _tried(self, way: _Way, model: Any, expected: Tensor | None) -> str:
        """Change the model in one way; why that can't be used, for all ranks the same; "": it can.

        Args:
            expected: the model's own logits, on the first rank.
        """
        reason = ""
        try:
            way.lay_out_(model)
            logits = self._continued(model) if way.keeps_one_text else self._logits(model)
            if expected is not None:
                reason = _difference(logits, expected, model.dtype)
        except (*CALL_ERRORS, ModelLoadError) as error:
            log.debug("%s", way.name, exc_info=True)
            reason = f"{type(error).__name__}: {error}".splitlines()[0].split(". ")[0]
        reasons = [""] * self._settings.tensor_parallel_degree
        dist.all_gather_object(reasons, reason)
        return next(filter(None, reasons), "")

    @torch.inference_mode()
    def _logits(self, model: Any) -> Tensor:
        """(tokens, vocabulary) fp32, in the host's memory; the model runs where its weights are."""
        with releasing_after_use(model):
            output = model(input_ids=torch.tensor([self._ids(model)], device=model.device), use_cache=False)
        logits: Tensor = output.logits[0].float().cpu()
        return logits

    def _continued(self, model: Any) -> Tensor:
        """`_logits` of a model that keeps one text, which also goes on with it."""
        ids = self._ids(model)
        return read_in_pieces(OneTextRunner(model, self._device), ids, len(ids)).cpu()

    def _ids(self, model: Any) -> list[int]:
        vocabulary = model.config.get_text_config(decoder=True).vocab_size
        ids = self._settings.probe_ids[:_TOKENS]
        return ids if ids and max(ids) < vocabulary else [(7 * i + 3) % vocabulary for i in range(_TOKENS)]


def _difference(logits: Tensor, expected: Tensor, dtype: torch.dtype) -> str:
    """A message if logits are not the expected ones, else ""."""
    off = float(distances(logits, expected).median())
    log.info("checked against the model's own code: DeepSpeed's logits are off by %.1e (0: equal, 1: unrelated)", off)
    allowed = _MOST_IN_FP32 if dtype == torch.float32 else _MOST
    return "" if off <= allowed else f"its logits would differ by {off:.2g} (1: as much as unrelated ones)"
