"""What a model is once it has been opened. Lives in the engine process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from ...core.engine_info import EngineInfo
from ..batch.state_slots import StateSlots
from ..checkpoints.loading import LoadedModel, rounding
from ..sampling.row_sampler import RowSampler
from ..sampling.torch_row_sampler import TorchRowSampler
from ..settings import BuiltInSettings
from ..torch_backend.model_runner import ModelRunner, Pick

#: `EngineInfo.runner` of a model that runs without torch.
NATIVE: Final = "native"


@dataclass(frozen=True)
class SequenceMemory:
    """What is kept of sequences, and how many tokens there is room for.

    Attributes:
        max_model_len: most tokens of a sequence.
        kv_blocks: of the cache, or, where it is not made of blocks, how many would have room for as many tokens.
        share_prefixes: whether sequences share the blocks of prefixes that they have in common.
        states: of recurrent layers, where prefixes are shared.
        resident_blocks: `BlockManager`'s.
    """

    max_model_len: int
    kv_blocks: int
    share_prefixes: bool
    states: StateSlots | None = None
    resident_blocks: Callable[[], int] | None = None


@dataclass(frozen=True)
class Scheduling:
    """What a scheduler has to know of the runner.

    Attributes:
        max_prefill_tokens: of prompts in a step.
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
    """What chooses tokens from a step's logits, and a shorter way to them if there is one."""

    row_sampler: RowSampler = field(default_factory=TorchRowSampler)
    pick: Pick = lambda chunks, asked: None


@dataclass(frozen=True)
class OpenedModel:
    """A model ready to step.

    Attributes:
        info: what is said of it to those who look after the model.
        description: one line for the log.
        takes_images, takes_drafts: whether its runner does.
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
    close: Callable[[], None] = lambda: None


def info_of(
    loaded: LoadedModel, settings: BuiltInSettings, runner: str, weight_bytes: int, cache_bytes: int
) -> EngineInfo:
    """What is said of a model that this runner runs."""
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
    """What a description begins with: the model's class, and the formats that it computes and keeps its weights in."""
    how = _weights_of(loaded, settings)
    rounded = "" if how is None else f" with {how} weights"
    return f"{type(loaded.model).__name__}, {str(loaded.dtype).removeprefix('torch.')}{rounded}"


def _weights_of(loaded: LoadedModel, settings: BuiltInSettings) -> str | None:
    """What the weights are quantized with or rounded to; None: nothing."""
    return loaded.method or rounding(settings)
