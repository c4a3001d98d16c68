"""The ways to run a model that are tried one after the other, and what each is given. Engine process, once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..checkpoints.draft_size import Beside
from ..checkpoints.loading import LoadedModel
from ..settings import BuiltInSettings as EngineSettings
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

    settings: EngineSettings
    loaded: LoadedModel
    length: int
    reference: Reference
    beside: Beside

    @property
    def name(self) -> str:
        """The model's class."""
        return type(self.loaded.model).__name__


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
