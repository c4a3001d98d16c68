"""Models as dialects see them: a worker's model for queries, a server's models for pages.

`QueriedModel` is in the worker, the rest in the front end. Protocols and plain values; a dialect holds none of them.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ...config import ModelConfig
from ...core.engine_info import EngineInfo
from ...core.model_files.download_part import DownloadPart
from ...core.model_files.model_card import ModelCard
from ...core.types import Chat


@dataclass(frozen=True)
class TokenSpan:
    """A token of a text and the characters it covers: text[start:stop]."""

    id: int
    text: str
    start: int
    stop: int


class QueriedModel(Protocol):
    """A worker's model, as queries see it.

    Attributes:
        task: what it does, by the name of transformers' pipeline.
        pooling: how it makes one vector of a text's tokens ("mean", "cls", ...); "" where it doesn't.
        labels: those of a classifier, in order.
        dtype: of the engine, or as far as the configuration says.
        max_model_len: tokens that it takes at most.
        max_batch_tokens: tokens that it reads at once, at most.
        capacity: calls that the worker takes at once.
    """

    config: ModelConfig
    task: str
    pooling: str
    labels: Sequence[str]
    model_id: str
    engine: EngineInfo
    dtype: str
    max_model_len: int
    max_batch_tokens: int
    capacity: int

    def tokenize(self, text: str, add_special_tokens: bool = True) -> list[TokenSpan]:
        """The tokens of a text, special ones included (with an empty span).

        Raises:
            ContextLengthError: the text has too many tokens to be listed.
        """
        ...

    def decode(self, ids: Sequence[int], skip_special_tokens: bool, field: str = "ids") -> str:
        """The text of token ids.

        Args:
            field: the request's name of the ids, for the error.

        Raises:
            ParameterError: an id is not in the vocabulary.
        """
        ...

    def entries(self, ids: Sequence[int]) -> list[str]:
        """The vocabulary's entries of token ids, such as "\u0120hello"; "" for an id that has none."""
        ...

    def render(self, chat: Chat) -> str:
        """The prompt text that the model's chat template makes of a chat.

        Raises:
            PayloadError: the model has no template, or the template refuses these messages.
        """
        ...


@dataclass(frozen=True)
class RequestCounts:
    """The outcomes of the requests to a model since it was registered; PAGE routes do not count.

    `succeeded` counts statuses below 400, `failed` other statuses and clients that disconnected. Their seconds are the
    sums of the times from a request's last byte to the answer's. `last_s` is the Unix time at which the last answer
    ended, 0.0 if none did.
    """

    succeeded: int = 0
    succeeded_s: float = 0.0
    failed: int = 0
    failed_s: float = 0.0
    last_s: float = 0.0

    def with_answer(self, status: int, duration_s: float) -> RequestCounts:
        """These counts and one more answer of this status, which has ended just now."""
        now_s = time.time()
        if status < 400:
            return replace(self, succeeded=self.succeeded + 1, succeeded_s=self.succeeded_s + duration_s, last_s=now_s)
        return replace(self, failed=self.failed + 1, failed_s=self.failed_s + duration_s, last_s=now_s)


@dataclass(frozen=True)
class ModelStatus:
    """One model (one version of it), as the front end sees it. An unloaded one is neither ready nor failed.

    Attributes:
        unloaded: whether it has no workers, and its next request, or `ServerView.load`, starts them.
        memory_bytes: of its workers, as last measured, or estimated before that; 0: not known.
        idle_s: how many seconds it has been loaded and without a request; None: it is in use, or not loaded.
        expires_s: Unix time at which its workers end unless a request comes; None: they stay, or there are none.
    """

    config: ModelConfig
    ready: bool
    failed: bool
    workers: int
    registered_s: float  # Unix time
    in_flight: int
    queued: int
    tally: RequestCounts = RequestCounts()
    engine: EngineInfo | None = None  # a worker's engine, once one is ready and has an engine
    task: str = ""  # its task, as `Handler.task` says, once a worker is ready
    unloaded: bool = False
    memory_bytes: int = 0
    idle_s: float | None = None
    expires_s: float | None = None

    @property
    def available(self) -> bool:
        """Whether requests to it are answered: it is ready, or loaded for them."""
        return self.ready or self.unloaded


class ServerView(Protocol):
    """The front end, as pages see and control it."""

    @property
    def models(self) -> Sequence[ModelStatus]:
        """Every registered model, in order of registration."""
        ...

    @property
    def ready(self) -> bool:
        """Whether there is a model, every one is available, and the server is not draining."""
        ...

    @property
    def lost(self) -> str:
        """Why only a new container, or another machine, helps; "" while this one may.

        A model has served, has no worker any more, and for minutes none could start, as the machine lacks memory,
        descriptors, processes or its GPU.
        """
        ...

    @property
    def unloaded(self) -> Sequence[ModelStatus]:
        """The models that have been unloaded and can be loaded again."""
        ...

    def select(self, name: str = "", version: str = "", unversioned: str = "") -> ModelStatus:
        """The model that a request names; `name` is "" if it names none. See `Dialect.unversioned`.

        Raises:
            ModelNotFoundError: no model, or no version of it, has this name.
            ModelNotNamedError: several are loaded, and none is the default.
        """
        ...

    async def load(self, name: str) -> None:
        """Load every version of a model, again if it is loaded, and wait until all versions can answer.

        Raises:
            ModelNotFoundError: the server knows no model of this name.
            ModelLoadError: a version did not load; it stays registered, as failed, or as it was.
        """
        ...

    async def unload(self, name: str) -> None:
        """Take every version of a model out of service, let its requests finish (`drain_timeout`), end its workers.

        Raises:
            ModelNotFoundError: no model of this name is loaded.
        """
        ...

    async def measure(self) -> None:
        """Have `ModelStatus.memory_bytes` be what the loaded models have now."""
        ...

    async def card(self, model: ModelStatus, *, whole: bool = False) -> ModelCard:
        """What a model's files say of it; with `whole`, the arrays too, such as its vocabulary."""
        ...

    async def remove(self, name: str) -> None:
        """Unregister every version of a model, once its requests are answered; its files stay.

        Raises:
            ModelNotFoundError: there is no such model.
        """
        ...

    async def copy(self, name: str, new_name: str) -> None:
        """Register a model again under another name, unloaded until a request names that.

        Raises:
            ModelNotFoundError: there is no such model.
            ModelConflictError, ParameterError: the other name is taken, or can't be one.
        """
        ...

    def pull(self, name: str, url: str) -> AsyncIterator[DownloadPart]:
        """Download a model, and register it, unloaded until a request names it. Ends when it is registered.

        Gives what is downloaded, whenever more of it has come. The download goes on if nobody waits for it; whoever
        asks for the same model meanwhile waits for the same download.

        Args:
            name: under which it is registered; "": the last part of the URL.

        Raises:
            ModelConflictError: another model has this name.
            ModelNotFoundError, ParameterError: the source has no such model, or it can't be downloaded or read, or
                the name is invalid.
            UnavailableError: the server is shutting down.
        """
        ...
