"""What a model is once it has been opened. Lives in the engine process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ...core.types import EngineInfo
from ..batch.state_slots import StateSlots
from ..checkpoints.loading import LoadedModel, rounding
from ..sampling.choosing import Chooser
from ..sampling.torch_chooser import TorchChooser
from ..settings import BuiltInSettings as EngineSettings
from ..torch_backend.model_runner import ModelRunner, Pick


@dataclass(frozen=True)
class OpenedRunner:
    """A model ready to step. `kind`, `refusal` and `unrounded` are `EngineInfo`'s `runner` and others of the names."""

    loaded: LoadedModel
    kind: str
    weight_bytes: int  # bytes that a decode step has to read at least
    cache_bytes: int
    runner: ModelRunner
    max_model_len: int
    max_prefill_tokens: int
    kv_blocks: int
    share_prefixes: bool
    description: str
    takes_images: bool = False
    takes_drafts: bool = False
    chooser: Chooser = field(default_factory=TorchChooser)
    pick: Pick = lambda chunks, asked: None
    resident_blocks: Callable[[], int] | None = None  # `BlockManager`'s `resident_blocks`
    states: StateSlots | None = None  # of recurrent layers, where prefixes are shared
    short_context: int = 0  # the `Scheduler`'s
    whole_prompts: bool = False  # likewise
    on_torch: bool = True
    repeats_steps: bool = True  # whether one that failed may be computed again, in parts
    close: Callable[[], None] = lambda: None  # ends the threads of what was opened
    refusal: str = ""
    unrounded: str = ""

    def info(self, settings: EngineSettings) -> EngineInfo:
        """What is said of it to those who look after the model."""
        return EngineInfo(
            runner=self.kind,
            dtype=str(self.loaded.dtype).removeprefix("torch."),
            quantize=weights_of(self.loaded, settings) or "none",
            device=str(self.loaded.device),
            refusal=self.refusal,
            unrounded=self.unrounded,
            weight_bytes=self.weight_bytes,
            cache_bytes=self.cache_bytes,
        )


def weights_of(loaded: LoadedModel, settings: EngineSettings) -> str | None:
    """What the weights are quantized with or rounded to; None: nothing."""
    return loaded.method or rounding(settings)


def name_of(loaded: LoadedModel, settings: EngineSettings) -> str:
    """What a description begins with: the model's class, and the formats that it computes and keeps its weights in."""
    how = weights_of(loaded, settings)
    rounded = "" if how is None else f" with {how} weights"
    return f"{type(loaded.model).__name__}, {str(loaded.dtype).removeprefix('torch.')}{rounded}"
