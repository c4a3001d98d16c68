"""A model once it has been opened. Lives in the engine process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ...core.engine_info import EngineInfo
from ..adapters.targets import Target
from ..batch.state_slots import StateSlots
from ..checkpoints.leaving import rounding
from ..checkpoints.loading import LoadedModel
from ..sampling.row_sampler import RowSampler
from ..sampling.torch_row_sampler import TorchRowSampler
from ..settings import BuiltInSettings
from .model_runner import ModelRunner, Pick

#: `EngineInfo.runner` of a model that runs without torch.
NATIVE: Final = "native"


@dataclass(frozen=True)
class SequenceMemory:
    """The memory for sequences: how many tokens fit, and in which form.

    Attributes:
        max_model_len: most tokens of a sequence.
        kv_blocks: blocks of the KV cache. A cache without blocks: the number of blocks that would hold as many tokens.
        share_prefixes: whether sequences with a common prefix share its blocks.
        states: slots for the states of recurrent layers; None: the model has none, or prefixes are not shared.
        resident_blocks: `BlockManager`'s.
    """

    max_model_len: int
    kv_blocks: int
    share_prefixes: bool
    states: StateSlots | None = None
    resident_blocks: Callable[[], int] | None = None


@dataclass(frozen=True)
class Scheduling:
    """What the scheduler needs to know about the runner.

    Attributes:
        max_prefill_tokens: most prompt tokens in a step.
        whole_prompts: whether prompts are read at once.
        short_context: `Scheduler`'s.
        sequences: how many may generate at once; None: as many as the settings say.
        repeats_steps: whether a step that failed may be computed again, in parts.
    """

    max_prefill_tokens: int
    whole_prompts: bool = False
    short_context: int = 0
    sequences: int | None = None
    repeats_steps: bool = True


@dataclass(frozen=True)
class TokenSampling:
    """The sampler of a step's logits, and a shortcut to tokens if the runner has one."""

    row_sampler: RowSampler = field(default_factory=TorchRowSampler)
    pick: Pick = lambda chunks, asked: None


@dataclass(frozen=True)
class OpenedModel:
    """A model ready to step.

    Attributes:
        info: its description for operators.
        description: one line for the log.
        takes_images, takes_drafts: whether its runner does.
        targets: the modules that adapters may change, if the model has adapters; its runner is an `AdapterRunner` then.
        close: ends the threads of what was opened.
    """

    loaded: LoadedModel
    runner: ModelRunner
    memory: SequenceMemory
    scheduling: Scheduling
    info: EngineInfo
    description: str
    sampling: TokenSampling = field(default_factory=TokenSampling)
    takes_images: bool = False
    takes_drafts: bool = False
    targets: Mapping[str, Target] = field(default_factory=dict)
    close: Callable[[], None] = lambda: None


def info_of(
    loaded: LoadedModel, settings: BuiltInSettings, runner: str, weight_bytes: int, cache_bytes: int
) -> EngineInfo:
    """The description of a model with this runner."""
    return EngineInfo(
        runner=runner,
        dtype=str(loaded.dtype).removeprefix("torch."),
        quantize=_weights_of(loaded, settings) or "none",
        device=str(loaded.device),
        weight_bytes=weight_bytes,
        cache_bytes=cache_bytes,
        offloaded=loaded.offloaded,
    )


def name_of(loaded: LoadedModel, settings: BuiltInSettings) -> str:
    """The beginning of a description: the model's class, and its formats of computation and of weights."""
    how = _weights_of(loaded, settings)
    rounded = "" if how is None else f" with {how} weights"
    return f"{type(loaded.model).__name__}, {str(loaded.dtype).removeprefix('torch.')}{rounded}"


def _weights_of(loaded: LoadedModel, settings: BuiltInSettings) -> str | None:
    """The weights' quantization or rounding; None: neither."""
    return loaded.method or rounding(settings)
