"""The ways to run a model that are tried one after the other, and what each is given. Engine process, once."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

from ..attention.lookup import set_attention
from ..checkpoints.draft_size import Beside
from ..checkpoints.loading import LoadedModel, can_page
from ..settings import BuiltInSettings
from ..transformers_private import attention_name
from .opened_model import OpenedModel
from .reference import Reference


@dataclass(frozen=True)
class OpeningRequest:
    """A loaded model that is to be opened.

    Attributes:
        length: tokens that a sequence should be able to have.
        reference: what its runner has to compute.
        beside: what a draft model will take.
    """

    settings: BuiltInSettings
    loaded: LoadedModel
    length: int
    reference: Reference
    beside: Beside

    @property
    def name(self) -> str:
        """The model's class."""
        return type(self.loaded.model).__name__

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
        told: whether the model's owner is told, who might expect that it is.
    """

    reason: str
    told: bool = False


class Candidate(Protocol):
    """One way to run a model."""

    def open(self, request: OpeningRequest) -> OpenedModel | Refusal:
        """Open the model in this way, if its logits are then the reference's; else leave it as it was.

        Raises:
            ModelLoadError: there is no memory for it, or a setting does not fit.
        """
        ...
