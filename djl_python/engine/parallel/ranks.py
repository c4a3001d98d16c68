"""Rank 0's end of a model that several devices share. Runs in the engine process that the worker spawned.

That process schedules, samples and answers, as any engine does. The other ranks are its children (`rank`). They open
the model as it does, and are told of each step before it is computed: what a runner needs of the chunks, no more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence as Several
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Final

import msgspec
from torch import Tensor

from ...core import logs
from ...core.errors import ModelLoadError, ServingError
from ...core.types import SamplingParams
from ...ipc.processes import start
from ..batch.chunk import Chunk
from ..batch.sequence import Sequence
from ..checkpoints.draft_size import NOTHING, Beside
from ..devices.pipeline_parallel import end_trials
from ..devices.tensor_parallel import join, settings_of
from ..interface import Progress
from ..opening.open_model import open_model
from ..opening.opened_model import OpenedModel
from ..settings import BuiltInSettings
from ..torch_backend.model_runner import ModelRunner, PagedModelRunner
from ..trial_text import sent_text

log = logging.getLogger(__name__)

EXIT_RANK_LOST: Final = 5
#: The last message to a rank.
END: Final = b""
#: How long opening a model has to fail by itself, and tell why, when another rank has failed. With gloo it does; NCCL
#: waits for that rank.
_GRACE_S: Final = 30.0
#: How long other ranks have to tell why they failed, and to end.
_WAIT_S: Final = 3.0


class Begin(msgspec.Struct, frozen=True, array_like=True):
    """First message to a rank. `meeting` is the file where the ranks find one another."""

    rank: int
    settings: BuiltInSettings
    meeting: str


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """What a runner needs of a chunk: `tokens` are the sequence's from `computed` on, and at their end the `drafts`."""

    sequence: int
    computed: int
    tokens: list[int]
    drafts: tuple[int, ...]
    completes: bool
    every_row: bool
    blocks: list[int]


def piece_of(chunk: Chunk) -> Piece:
    """What is sent of a chunk."""
    sequence = chunk.sequence
    return Piece(
        sequence.id,
        sequence.computed,
        chunk.tokens,
        chunk.drafts,
        chunk.completes,
        sequence.wants_prompt_logprobs,
        sequence.blocks,
    )


class StepMessage(msgspec.Struct, frozen=True, array_like=True):
    """What a rank is sent of a step. `forgotten` are the sequences that its runner forgets before that."""

    pieces: list[Piece]
    forgotten: list[int]


@dataclass(frozen=True, kw_only=True)
class ReceivedChunk(Chunk):
    """A chunk of a sequence whose end is not known here."""

    piece: Piece

    @property
    def completes(self) -> bool:
        return self.piece.completes

    @property
    def tokens(self) -> list[int]:
        return self.piece.tokens


class Followed:
    """The sequences that a rank hears of: what a runner is given of what was received."""

    def __init__(self) -> None:
        self._sequences: dict[int, Sequence] = {}

    def chunk_of(self, piece: Piece) -> ReceivedChunk:
        """The chunk. Its sequence has all tokens up to the chunk's end, unless others have computed its beginning."""
        sequence = self._sequences.get(piece.sequence)
        if sequence is None:
            sampling = SamplingParams(max_new_tokens=1, prompt_logprobs=0 if piece.every_row else None)
            sequence = self._sequences[piece.sequence] = Sequence(piece.sequence, [], 1, sampling)
        del sequence.tokens[piece.computed :]
        sequence.tokens += piece.tokens
        sequence.computed, sequence.blocks = piece.computed, piece.blocks
        return ReceivedChunk(sequence, len(piece.tokens), piece.drafts, piece=piece)

    def forget(self, number: int) -> Sequence | None:
        """Hear no more of a sequence, which is returned if it was heard of."""
        return self._sequences.pop(number, None)


class Ranks:
    """The other ranks, from their start to their end. If one is lost, this process ends too.

    Args:
        settings: those of rank 0, see `settings_of`.
    """

    def __init__(self, settings: BuiltInSettings) -> None:
        degree = settings.ranks
        self._folder = tempfile.TemporaryDirectory(prefix="djl-ranks-")
        self.meeting = Path(self._folder.name) / "meeting"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []
        self._encoder = msgspec.msgpack.Encoder()
        self._forgotten: list[int] = []
        self._failed, self._reason = threading.Event(), ""
        self._is_open = self._closing = False
        for rank in range(1, degree):
            process, sock = start("djl_python.engine.parallel.rank", log_name=f"{logs.name()}/{rank}")
            self._processes.append(process)
            self._connections.append(Connection(sock.detach()))
            begin = Begin(rank, settings_of(rank, settings), str(self.meeting))
            self._connections[-1].send_bytes(self._encoder.encode(begin))
        threading.Thread(target=self._watch, name="ranks", daemon=True).start()

    def are_open(self) -> None:
        """Note that all have opened the model."""
        self._is_open = True

    def compute(self, chunks: Several[Chunk]) -> None:
        """Have the ranks begin a step."""
        message = self._encoder.encode(StepMessage([piece_of(chunk) for chunk in chunks], self._forgotten))
        self._forgotten = []
        for connection in self._connections:
            connection.send_bytes(message)

    def forget(self, sequence: Sequence) -> None:
        """Have the ranks' runners forget a sequence, before the next step."""
        self._forgotten.append(sequence.id)

    def failure(self, *, wait: bool) -> str:
        """Why a rank could not open the model; empty if none has said so by now, or after a moment's `wait`."""
        self._failed.wait(_WAIT_S if wait else 0)
        return self._reason

    def close(self) -> None:
        """End the ranks."""
        self._closing = True
        for connection, process in zip(self._connections, self._processes, strict=True):
            with contextlib.suppress(ConnectionError):  # it has ended by itself
                connection.send_bytes(END)
            try:
                process.wait(_WAIT_S)
            except subprocess.TimeoutExpired:  # it waits for the others, within a step
                process.kill()
                process.wait()
        self._folder.cleanup()

    def _watch(self) -> None:
        """Wait until a rank says why it fails, or ends."""
        connection = wait(self._connections)[0]
        assert isinstance(connection, Connection)
        reason = "a process of a device that shares the model has ended unexpectedly"
        with contextlib.suppress(EOFError, ConnectionError):
            reason = connection.recv_bytes().decode()
        if not self._closing:
            self._reason = reason
            self._failed.set()
        if not self._is_open:
            time.sleep(_GRACE_S)
        if not self._closing:
            log.critical("%s", reason)
            self._folder.cleanup()
            os._exit(EXIT_RANK_LOST)


class SharedRunner:
    """A `ModelRunner` whose steps all ranks compute."""

    def __init__(self, runner: ModelRunner, ranks: Ranks) -> None:
        self._runner = runner
        self._ranks = ranks

    def run(self, chunks: list[Chunk]) -> Tensor:
        self._ranks.compute(chunks)
        return self._runner.run(chunks)

    def forget(self, sequence: Sequence) -> None:
        self._runner.forget(sequence)
        self._ranks.forget(sequence)

    def operator_seconds(self) -> dict[str, float]:
        return self._runner.operator_seconds()


def open_part(
    rank: int, settings: BuiltInSettings, meeting: Path, progress: Progress, beside: Beside = NOTHING
) -> OpenedModel:
    """Open a rank's part of the model, with the others, see `tensor_parallel.join`.

    Raises:
        ModelLoadError: it has no memory for that; or groups of layers keep more than what is in the cache's blocks.
    """
    join(rank, settings, meeting)
    opened = open_model(settings, progress, beside=beside)
    pages = isinstance(opened.runner, PagedModelRunner) and opened.memory.share_prefixes
    if settings.pipeline_parallel_degree > 1 and not pages:
        kind, degree = type(opened.loaded.model).__name__, settings.pipeline_parallel_degree
        raise ModelLoadError(
            f"option.pipeline_parallel_degree={degree}: {kind} "
            "does not keep all that it knows of a text in a paged cache, and runs on one device"
        )
    end_trials(opened.loaded.model)
    return opened


def open_shared(settings: BuiltInSettings, progress: Progress, beside: Beside) -> OpenedModel:
    """`open_model` for a model that several devices share.

    Args:
        settings: with the degree that `tensor_parallel.degree_of` has found, or that `check_stages` permits.

    Raises:
        ModelLoadError: they can't, or one of them has no memory for its part.
    """
    degree = settings.ranks
    settings = msgspec.structs.replace(settings_of(0, settings), trial_ids=sent_text.ids())
    ranks = Ranks(settings)
    try:
        opened = open_part(0, settings, ranks.meeting, progress, beside)
    except Exception as exc:
        # What has failed since another rank did says little. If all fail alike, this one's words are as good.
        reason = ranks.failure(wait=not isinstance(exc, ServingError))
        ranks.close()
        if reason:
            raise ModelLoadError(reason) from exc
        raise
    ranks.are_open()

    def close() -> None:
        ranks.close()
        opened.close()

    runner = SharedRunner(opened.runner, ranks)
    description = f"{opened.description}, shared by {degree} devices"
    scheduling = dataclasses.replace(opened.scheduling, repeats_steps=False)
    return dataclasses.replace(opened, runner=runner, description=description, scheduling=scheduling, close=close)
