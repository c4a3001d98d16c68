"""Compiling grammars: tried in processes that limits kill, cancelled with their requests, cached."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from typing import Any

import psutil
import pytest

from djl_python.core.errors import GenerationError, ParameterError
from djl_python.core.types import Grammar, Vocabulary
from djl_python.engine.sampling import grammar, grammar_compiler, grammar_limits, grammar_trials
from djl_python.engine.sampling.grammar import MaskComputer, Matcher
from djl_python.engine.sampling.grammar_compiler import GrammarCompiler
from djl_python.engine.sampling.grammar_limits import MOST_TOKENS, STEP_ALLOWANCE_S, StepBudget, TrialLimits
from djl_python.engine.sampling.grammar_trials import Attempt, Trials
from tests.grammars import allowed

#: Takes minutes to compile, and gigabytes.
ENDLESS = Grammar("regex", "(abc|def)[xy]{2,3}" * 1_000_000)
#: Each of its steps takes a tenth of a second.
SLOW = Grammar("regex", "(a{300}){300}")


@pytest.fixture
def compiler() -> Iterator[GrammarCompiler]:
    """A compiler for a tokenizer of single bytes."""
    made = GrammarCompiler(257, frozenset({256}))
    made.set_vocabulary(Vocabulary([bytes([byte]) for byte in range(256)] + [b"<end>"], [256], [256]))
    yield made
    made.close()


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources of the trials that have been made."""
    made: list[str] = []
    make = Trials.make

    def counted(self: Trials, attempt: Attempt, grammar: Grammar, limits: TrialLimits) -> Any:
        made.append(grammar.source)
        return make(self, attempt, grammar, limits)

    monkeypatch.setattr(Trials, "make", counted)
    return made


def limit(monkeypatch: pytest.MonkeyPatch, *rows: TrialLimits) -> None:
    monkeypatch.setattr(grammar_compiler, "TRIALS", rows)


def starters() -> list[psutil.Process]:
    """The processes that start the trials of a compiler, which live."""
    return [
        child
        for child in psutil.Process().children()
        if child.status() != psutil.STATUS_ZOMBIE and "djl_python.engine.sampling.grammar_trial" in child.cmdline()
    ]


def children() -> set[int]:
    return {child.pid for starter in starters() for child in starter.children()}


def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds: a process has no event for what happens in it."""
    for _ in range(3000):
        if holds():
            return
        with pytest.raises(psutil.TimeoutExpired):
            psutil.Process().wait(0.01)
    raise AssertionError("it never came to that")


def kill_starters() -> set[int]:
    """Kill the processes that start trials; returns what they were."""
    killed = starters()
    assert killed
    for process in killed:
        process.kill()
    until(lambda: not starters())
    return {process.pid for process in killed}


def test_a_grammar_that_takes_too_long_is_refused_and_its_process_is_gone(
    compiler: GrammarCompiler, tried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, TrialLimits(cpu_s=0.01), TrialLimits(cpu_s=0.02))
    error = compiler.compile(ENDLESS).exception()
    assert isinstance(error, ParameterError)
    assert error.message.startswith("grammar is not valid: it takes more than")
    assert error.__traceback__ is None
    assert tried == [ENDLESS.source] * 2
    assert compiler.compile(ENDLESS).exception() is error
    assert len(tried) == 2
    assert allowed(Matcher(compiler.compile(Grammar("regex", "b")).result())) == [ord("b")]


def test_a_grammar_that_takes_too_much_memory_is_refused(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, TrialLimits(cpu_s=60, memory_bytes=8 << 20))
    with pytest.raises(ParameterError, match="MiB, to compile"):
        compiler.compile(Grammar("regex", "[ab]" * 250_000)).result()


def test_a_grammar_whose_steps_are_slow_is_refused(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ParameterError, match="not valid: the grammar can't be followed any further"):
        compiler.compile(SLOW).result()
    monkeypatch.setattr(grammar_limits, "STEP_SAVINGS_S", -1.0)
    matcher = Matcher(compiler.compile(Grammar("regex", "ab")).result())
    (first,) = allowed(matcher)
    with pytest.raises(GenerationError, match="takes more than 10 ms for each"):
        matcher.accept_token(first)


def test_slow_grammars_keep_no_other_waiting(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, TrialLimits(cpu_s=0.01, at_once=2), TrialLimits(cpu_s=60, memory_bytes=1 << 30))
    slow = [compiler.compile(Grammar("regex", ENDLESS.source + "x" * number)) for number in range(4)]
    for number in range(5):
        compiler.compile(Grammar("regex", f"quick {number}")).result()
    assert not any(future.done() for future in slow)


def test_a_grammar_that_nobody_waits_for_is_not_compiled_any_further(
    compiler: GrammarCompiler, tried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, TrialLimits(cpu_s=60, memory_bytes=1 << 34))
    attempts: dict[Grammar, Attempt] = {}
    make = Trials.make

    def noted(trials: Trials, attempt: Attempt, grammar: Grammar, limits: TrialLimits) -> Any:
        attempts[grammar] = attempt
        return make(trials, attempt, grammar, limits)

    monkeypatch.setattr(Trials, "make", noted)
    running = [Grammar("regex", ENDLESS.source + "x" * number) for number in range(2)]
    waiting = Grammar("regex", "waiting")
    futures = [compiler.compile(one) for one in (*running, running[0], waiting)]
    until(lambda: len(attempts) == 2 and all(attempt.pid for attempt in attempts.values()))
    pids = [attempts[one].pid for one in running]
    compiler.leave(waiting, futures[3])
    compiler.leave(running[0], futures[0])
    assert psutil.pid_exists(pids[0]) and not futures[0].done()  # another sequence waits for it
    compiler.leave(running[0], futures[2])
    compiler.leave(running[1], futures[1])
    until(lambda: not any(map(psutil.pid_exists, pids)))
    for future in futures:
        with pytest.raises(CancelledError):
            future.result()
    assert compiler.compile(Grammar("regex", "b")).result().words == 9
    assert waiting.source not in tried
    assert compiler.compile(waiting).result().words == 9


def test_processes_that_have_died_are_started_again(compiler: GrammarCompiler) -> None:
    compiler.compile(Grammar("regex", "a")).result()
    killed = kill_starters()
    compiler.compile(Grammar("regex", "b")).result()
    assert [starter.pid for starter in starters()] and killed.isdisjoint(starter.pid for starter in starters())


def test_a_failure_to_start_a_trial_is_not_cached(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **more: Any) -> Any:
        raise OSError("no process may be started")

    compiler.compile(Grammar("regex", "b")).result()
    kill_starters()
    with monkeypatch.context() as patch:
        patch.setattr(grammar_trials, "start", fail)
        failed = compiler.compile(Grammar("regex", "a"))
        with pytest.raises(GenerationError, match="no process may be started"):
            failed.result()
    again = compiler.compile(Grammar("regex", "a"))
    compiler.leave(Grammar("regex", "a"), failed)  # the other sequence has waited for another attempt
    again.result()


def test_the_processes_end_with_the_compiler(compiler: GrammarCompiler) -> None:
    compiler.compile(Grammar("regex", "a")).result()
    until(lambda: len(children()) == sum(row.at_once for row in grammar_limits.TRIALS) + 1)
    pids = children()
    compiler.close()
    until(lambda: not any(map(psutil.pid_exists, pids)))


def test_large_grammars_are_forgotten_sooner(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (compiler.compile(Grammar("regex", source)) for source in ("first", "second"))
    first.result(), second.result()
    monkeypatch.setattr(grammar_compiler, "CACHED_BYTES", -1)
    compiler.compile(Grammar("regex", "third")).result()
    assert compiler.compile(Grammar("regex", "first")) is not first
    assert compiler.compile(Grammar("regex", "second")) is not second


@pytest.mark.parametrize("wear", [lambda one: one.fail(), lambda one: setattr(one, "tokens", MOST_TOKENS + 1)])
def test_a_grammar_that_has_been_used_for_long_is_compiled_again(
    compiler: GrammarCompiler, tried: list[str], wear: Callable[[Any], None]
) -> None:
    """Its copies share what llguidance has worked out, which has a limit."""
    old = compiler.compile(Grammar("regex", "a")).result()
    assert compiler.compile(Grammar("regex", "a")).result() is old
    wear(old)
    assert compiler.compile(Grammar("regex", "a")).result() is not old
    assert tried == ["a"]  # that it can be compiled is known


def test_a_token_may_cost_what_others_have_saved() -> None:
    budget = StepBudget()
    for _ in range(100):
        budget.charge(STEP_ALLOWANCE_S)
        assert not budget.spent
    budget.charge(0.099)
    assert not budget.spent
    budget.charge(0.02)
    assert budget.spent


class Charged:
    """A state of a grammar that notes when its mask is computed by itself."""

    words = 1

    def __init__(self, matcher: Matcher) -> None:
        self.state, self.charges = matcher.state, 0

    def charge(self, cpu_s: float) -> None:
        self.charges += 1

    def accept_token(self, token_id: int) -> bool:
        raise NotImplementedError


def test_after_a_slow_step_each_sequence_is_charged_for_its_own_mask(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = compiler.compile(Grammar("regex", "ab")).result()
    Charged.words = compiled.words
    both, computer = [Charged(Matcher(compiled)) for _ in range(2)], MaskComputer(2)
    monkeypatch.setattr(grammar, "STEP_ALLOWANCE_S", 60.0)
    computer.masks(both)
    assert [one.charges for one in both] == [0, 0]
    with monkeypatch.context() as patch:
        patch.setattr(grammar, "STEP_ALLOWANCE_S", 0.0)
        computer.masks(both)
    for _ in range(30):
        computer.masks(both)
    assert [one.charges for one in both] == [grammar.STEPS_APART] * 2
