"""Rank 0's end of a model that several devices share. Runs in the engine process that the worker spawned.

That process schedules, samples and answers, as any engine does. The other ranks are its children (`rank`). They open
the model as it does, and get each step before it is computed: only the parts of chunks that a runner needs.
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
from collections import abc
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Final

import msgspec
from torch import Tensor

from ...core import logs
from ...core.errors import ModelLoadError, ServingError
from ...core.types import SamplingParams
from ...ipc.heartbeat import BEATS
from ...ipc.process_state import HALTED, halted
from ...ipc.processes import start
from ..adapters.peft_files import LoraAdapter
from ..adapters.targets import whole_targets
from ..batch.chunk import SequenceChunk
from ..batch.sequence import Sequence
from ..checkpoints.draft_size import NO_DRAFT, DraftMemory
from ..devices.pipeline_parallel import end_probes
from ..devices.tensor_parallel import join, settings_of
from ..interface import ProbeIds, Progress
from ..opening.open_model import open_model
from ..runner.model_runner import AdapterRunner, ModelRunner
from ..runner.opened_model import OpenedModel
from ..settings import BuiltInSettings
from ..torch_backend.paged_runner import PagedModelRunner
from .adapters import LoadMessage, PartAdapters, UnloadMessage

log = logging.getLogger(__name__)

EXIT_RANK_LOST: Final = 5
#: The last message to a rank.
END: Final = b""
#: After another rank has failed, how long to wait until opening fails with a reason. With gloo it does; NCCL waits for
#: that rank.
_GRACE_S: Final = 30.0
#: How long other ranks have to report why they failed, and to end.
_WAIT_S: Final = 3.0


class Begin(msgspec.Struct, frozen=True, array_like=True):
    """First message to a rank. `meeting` is the file where the ranks find one another."""

    rank: int
    settings: BuiltInSettings
    meeting: str


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """The part of a chunk that a runner needs: `tokens` are the sequence's from `computed` on, with the `drafts` at
    their end.
    """

    sequence: int
    computed: int
    tokens: list[int]
    drafts: tuple[int, ...]
    completes: bool
    every_row: bool
    blocks: list[int]
    adapter_slot: int = 0


def piece_of(chunk: SequenceChunk) -> Piece:
    """The part of a chunk that is sent."""
    sequence = chunk.sequence
    return Piece(
        sequence.id,
        sequence.computed,
        chunk.tokens,
        chunk.drafts,
        chunk.completes,
        sequence.wants_prompt_logprobs,
        sequence.blocks,
        sequence.adapter_slot,
    )


class StepMessage(msgspec.Struct, frozen=True, array_like=True, tag="step"):
    """A step for a rank. `forgotten` are the sequences that its runner forgets before it."""

    pieces: list[Piece]
    forgotten: list[int]


@dataclass(frozen=True, kw_only=True)
class ReceivedChunk(SequenceChunk):
    """A chunk of a sequence whose end is not known here."""

    piece: Piece

    @property
    def completes(self) -> bool:
        return self.piece.completes

    @property
    def tokens(self) -> list[int]:
        return self.piece.tokens


class Followed:
    """The sequences of a rank: makes chunks for the runner from received pieces."""

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
        sequence.adapter_slot = piece.adapter_slot
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
        self._beat_s = settings.beat_s
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

    def compute(self, chunks: abc.Sequence[SequenceChunk]) -> None:
        """Have the ranks begin a step."""
        self.tell(StepMessage([piece_of(chunk) for chunk in chunks], self._forgotten))
        self._forgotten = []

    def tell(self, message: StepMessage | LoadMessage | UnloadMessage) -> None:
        """Have the ranks do what a message says, after what they were told before."""
        encoded = self._encoder.encode(message)
        for connection in self._connections:
            connection.send_bytes(encoded)

    def forget(self, sequence: Sequence) -> None:
        """Have the ranks' runners forget a sequence, before the next step."""
        self._forgotten.append(sequence.id)

    def failure(self, *, wait: bool) -> str:
        """Why a rank could not open the model; empty if no rank has reported that by now, or after a moment's
        `wait`.
        """
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

    def _kill(self) -> None:
        """End the ranks at once, also stopped ones, and wait until the memory of their devices is free again."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):  # its driver has not let it go yet
                process.wait(_WAIT_S)

    def _watch(self) -> None:
        """Wait until a rank says why it fails, or ends, or has been halted for as long as a process may be silent."""
        reason, halts = "a process of a device that shares the model has ended unexpectedly", 0
        while not (spoken := wait(self._connections, self._beat_s)) and halts < BEATS:
            halts = halts + 1 if any(halted(process.pid) for process in self._processes) else 0
        if not spoken:
            reason = f"a process of a device that shares the model {HALTED}"
            self._is_open = True  # none of them would end by itself
        else:
            connection = spoken[0]
            assert isinstance(connection, Connection)
            with contextlib.suppress(EOFError, ConnectionError):
                reason = connection.recv_bytes().decode()
        if not self._closing:
            self._reason = reason
            self._failed.set()
        if not self._is_open:
            time.sleep(_GRACE_S)
        if not self._closing:
            log.critical("%s", reason)
            self._kill()
            self._folder.cleanup()
            os._exit(EXIT_RANK_LOST)


class SharedRunner:
    """An `AdapterRunner` whose steps all ranks compute, with adapters that all of them hold.

    Args:
        adapters: this rank's; None: the model has none.
    """

    def __init__(self, runner: ModelRunner, ranks: Ranks, adapters: PartAdapters | None) -> None:
        self._runner = runner
        self._ranks = ranks
        self._adapters = adapters

    def run(self, chunks: list[SequenceChunk]) -> Tensor:
        self._ranks.compute(chunks)
        return self._runner.run(chunks)

    def forget(self, sequence: Sequence) -> None:
        self._runner.forget(sequence)
        self._ranks.forget(sequence)

    def load_adapter(self, slot: int, adapter: LoraAdapter) -> None:
        assert self._adapters is not None
        self._ranks.tell(LoadMessage.of(slot, adapter))
        self._adapters.load(slot, adapter)

    def unload_adapter(self, slot: int) -> None:
        assert self._adapters is not None
        self._ranks.tell(UnloadMessage(slot))
        self._adapters.unload(slot)

    def operator_seconds(self) -> dict[str, float]:
        return self._runner.operator_seconds()


def adapters_of(opened: OpenedModel) -> PartAdapters | None:
    """A rank's adapters; None: the model has none."""
    if not opened.targets:
        return None
    assert isinstance(opened.runner, AdapterRunner)
    return PartAdapters(opened.runner, opened.targets.keys(), opened.loaded.device)


def open_part(
    rank: int, settings: BuiltInSettings, meeting: Path, progress: Progress, draft: DraftMemory = NO_DRAFT
) -> OpenedModel:
    """Open a rank's part of the model, with the others, see `tensor_parallel.join`.

    Raises:
        ModelLoadError: it has no memory for that; or groups of layers keep more than what is in the cache's blocks.
    """
    join(rank, settings, meeting)
    opened = open_model(settings, progress, draft=draft)
    pages = isinstance(opened.runner, PagedModelRunner) and opened.memory.share_prefixes
    if settings.pipeline_parallel_degree > 1 and not pages:
        kind, degree = type(opened.loaded.model).__name__, settings.pipeline_parallel_degree
        raise ModelLoadError(
            f"option.pipeline_parallel_degree={degree}: {kind} "
            "does not keep all that it knows of a text in a paged cache, and runs on one device"
        )
    end_probes(opened.loaded.model)
    return opened


def open_shared(settings: BuiltInSettings, progress: Progress, draft: DraftMemory, probe_ids: ProbeIds) -> OpenedModel:
    """`open_model` for a model that several devices share.

    Args:
        probe_ids: a text that all ranks try the model on.
        settings: with the degree that `tensor_parallel.degree_of` has found, or that `check_stages` permits.

    Raises:
        ModelLoadError: the devices can't share the model, or one of them lacks memory for its part.
    """
    degree = settings.ranks
    settings = msgspec.structs.replace(settings_of(0, settings), probe_ids=probe_ids())
    ranks = Ranks(settings)
    try:
        opened = open_part(0, settings, ranks.meeting, progress, draft)
    except Exception as exc:
        # An error after another rank's failure says little. If all fail alike, this one's message is as good.
        reason = ranks.failure(wait=not isinstance(exc, ServingError))
        ranks.close()
        if reason:
            raise ModelLoadError(reason) from exc
        raise
    ranks.are_open()

    def close() -> None:
        ranks.close()
        opened.close()

    runner = SharedRunner(opened.runner, ranks, adapters_of(opened))
    by_layers = opened.targets and settings.pipeline_parallel_degree > 1
    targets = whole_targets(opened.loaded.model) if by_layers else opened.targets
    description = f"{opened.description}, shared by {degree} devices"
    scheduling = dataclasses.replace(opened.scheduling, repeats_steps=False)
    return dataclasses.replace(
        opened, runner=runner, description=description, scheduling=scheduling, targets=targets, close=close
    )
