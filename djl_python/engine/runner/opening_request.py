"""The input of each way to run a model, and its refusal. Engine process, once."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

from ..adapters.targets import Target
from ..attention.lookup import set_attention
from ..checkpoints.draft_size import DraftMemory
from ..checkpoints.loading import LoadedModel, can_page
from ..settings import BuiltInSettings
from ..transformers_private import attention_name
from .reference import Reference


@dataclass(frozen=True)
class OpeningRequest:
    """A loaded model that is to be opened.

    Attributes:
        length: tokens that a sequence should be able to have.
        reference: what its runner has to compute.
        beside: what a draft model will take.
        targets: the modules that its adapters may change, if it is to have any.
    """

    settings: BuiltInSettings
    loaded: LoadedModel
    length: int
    reference: Reference
    draft: DraftMemory
    targets: Mapping[str, Target] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The model's class."""
        return type(self.loaded.model).__name__

    @property
    def adapter_bytes(self) -> int:
        """What adapters in all slots take, if they have the highest rank and change every linear."""
        settings = self.settings
        widths = sum(target.inputs + target.outputs for target in self.targets.values() if not target.embedding)
        return settings.max_loras * settings.max_lora_rank * widths * self.loaded.dtype.itemsize

    def page_attention_(self, undo: ExitStack) -> bool:
        """Give the model paged attention, if it can have any; returns whether it has.

        Args:
            undo: gives back the model's own, if it is closed before all of it is popped.
        """
        own = attention_name(self.loaded.model.config.get_text_config(decoder=True))
        undo.callback(set_attention, self.loaded.model, own)
        return can_page(self.loaded)


@dataclass(frozen=True)
class Refusal:
    """Why a model is not run in one way.

    Attributes:
        shown: whether the model's owner should see it, who may expect that way.
    """

    reason: str
    shown: bool = False
