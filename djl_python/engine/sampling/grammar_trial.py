"""`python -m djl_python.engine.sampling.grammar_trial --fd N`: tries to compile grammars, with limits that kill.

Spawned by the engine process (`grammar_trials`). It reads the vocabulary once and then forks: some children wait for
the next trials, and each that ends is replaced. So a trial has a fresh process of its own, which begins at once, may be
killed at any time, and gives back its memory. This process has one thread and no more than the tokenizer, which makes
forking safe and cheap; no other process of ours forks.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import select
import signal
import socket
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import msgspec

from ...core.errors import GenerationError, ParameterError
from ...core.types import Grammar, Vocabulary
from ...ipc.processes import begin_child, end_with_parent
from .grammar import CompiledGrammar, Matcher, special_tokens, tokenizer_of
from .grammar_limits import TRIALS, TrialLimits

if TYPE_CHECKING:
    from llguidance import LLTokenizer

#: One more than trials are made at once.
_CHILDREN: Final = 1 + sum(limits.at_once for limits in TRIALS)
#: Tokens of each text that a trial writes, to find grammars whose every step is slow.
_TRIED_TOKENS: Final = 12


class Knowledge(msgspec.Struct, frozen=True, array_like=True):
    """First message to this process: the tokens; `GrammarCompiler` describes the others."""

    vocabulary: Vocabulary
    rows: int
    eos_ids: frozenset[int]


class GrammarTrial(msgspec.Struct, frozen=True, array_like=True):
    """The grammar to try, and the limits."""

    grammar: Grammar
    limits: TrialLimits


class Taken(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A trial has begun, in the process `pid`."""

    pid: int


class Outcome(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A trial has ended within its limits.

    Attributes:
        error: the grammar's fault; "": none.
        memory_bytes: memory of the compiled grammar.
        lark: the translation of a GBNF grammar, which may have taken long.
    """

    error: str
    memory_bytes: int
    lark: str = ""


def main() -> None:
    control = begin_child("engine.sampling.grammar_trial", __doc__)
    with contextlib.suppress(EOFError, ConnectionError):  # the engine process has ended
        with Connection(os.dup(control.fileno())) as connection:
            known = msgspec.msgpack.decode(connection.recv_bytes(), type=Knowledge)
        _stand_by(control, known)


def _stand_by(control: socket.socket, known: Knowledge) -> None:
    """Have children that wait for trials, until the engine ends."""
    tokenizer, error = None, ""
    try:
        tokenizer = tokenizer_of(msgspec.structs.replace(known.vocabulary, definition=""), known.rows, known.eos_ids)
    except ParameterError as refusal:
        error = refusal.message
    special = special_tokens(known.vocabulary, known.rows)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children leave nothing behind
    gc.collect()
    gc.freeze()
    poll = select.poll()
    poll.register(control, 0)  # reports its end
    children = 0
    while True:
        while children < _CHILDREN:
            ended, theirs = os.pipe()  # the child's end closes when it ends
            if os.fork() == 0:
                os.close(ended)
                _child(control, tokenizer, error, special)
            os.close(theirs)
            poll.register(ended, 0)
            children += 1
        for descriptor, _ in poll.poll():
            if descriptor == control.fileno():
                return
            poll.unregister(descriptor)
            os.close(descriptor)
            children -= 1


def _child(control: socket.socket, tokenizer: LLTokenizer | None, error: str, special: Mapping[str, int]) -> NoReturn:
    """Wait for a trial, make it, end. The trial comes over a connection of its own, whose end is passed here."""
    with contextlib.suppress(OSError, EOFError):  # the engine has ended, or nobody wants to know any more
        end_with_parent(signal.SIGKILL)
        if tokenizer is not None:
            _outcome(Grammar("json_object"), tokenizer, special)  # touches the memory that a trial needs
        _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        control.close()
        if descriptors:
            with Connection(descriptors[0]) as connection:
                trial = msgspec.msgpack.decode(connection.recv_bytes(), type=GrammarTrial)
                connection.send_bytes(msgspec.msgpack.encode(Taken(os.getpid())))
                _limit(trial.limits)
                outcome = _outcome(trial.grammar, tokenizer, special) if tokenizer is not None else Outcome(error, 0)
                connection.send_bytes(msgspec.msgpack.encode(outcome))
    os._exit(0)


def _limit(limits: TrialLimits) -> None:
    """Have the system end this process when it takes more than it may."""
    os.nice(limits.niceness)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # llguidance's last words when there is no memory
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    most = _pages(0) + limits.memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, limits.cpu_s)


def _outcome(grammar: Grammar, tokenizer: LLTokenizer, special: Mapping[str, int]) -> Outcome:
    resident = _pages(1)
    try:
        compiled = CompiledGrammar(tokenizer, grammar, special)
        for place in (0.0, 0.5):
            _write(Matcher(compiled), compiled, place)
    except ParameterError as refusal:
        return Outcome(refusal.message, 0)
    return Outcome("", max(_pages(1) - resident, 0), compiled.lark)


def _write(matcher: Matcher, compiled: CompiledGrammar, place: float) -> None:
    """Write the beginning of a text in the tokens that are allowed next after this place in the vocabulary.

    Raises:
        ParameterError: the grammar's steps cost too much.
    """
    for _ in range(_TRIED_TOKENS):
        cpu = time.thread_time()
        mask = matcher.state.compute_bitmask()
        matcher.charge(time.thread_time() - cpu)
        token = _allowed(mask, int(len(mask) * place))
        if token is None or token in compiled.eos_ids:
            return
        try:
            matcher.accept_token(token)
        except GenerationError as refusal:
            raise ParameterError(f"grammar is not valid: {refusal.message}") from refusal


def _allowed(mask: bytes, start: int) -> int | None:
    """A token of the mask, the first at or after byte `start`; None: there is none."""
    for begin in (start, 0):
        rest = mask[begin:].lstrip(b"\0")
        if rest:
            at = len(mask) - len(rest)
            return at * 8 + (rest[0] & -rest[0]).bit_length() - 1
    return None


def _pages(which: int) -> int:
    """Bytes of this process: 0: its address space, 1: its resident memory."""
    return int(Path("/proc/self/statm").read_text().split()[which]) * resource.getpagesize()


if __name__ == "__main__":
    main()
