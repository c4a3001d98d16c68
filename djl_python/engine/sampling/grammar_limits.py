"""Limits on the cost of a grammar: to compile, in each step, in the cache. Engine process, and those that try grammars.

Times are processor time of one thread, so that they mean the same on a busy machine. DECISIONS 113 has the
measurements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:  # imported where it is first needed: most engines never compile a grammar
    from llguidance import LLParserLimits

_MIB: Final = 2**20

CACHED_GRAMMARS: Final = 128
#: Most bytes of all cached grammars together when they are new.
CACHED_BYTES: Final = 512 * _MIB
#: Copies of a compiled grammar share memoized states, which grow with each text, up to a limit that ends texts. After
#: so many tokens, new sequences get the grammar compiled again.
MOST_TOKENS: Final = 20_000

#: Processor time that a sequence's grammar has for each token, and how much of it can be saved up for slow ones. The
#: steps of all sequences wait for it.
STEP_ALLOWANCE_S: Final = 0.01
STEP_SAVINGS_S: Final = 0.1

#: llguidance's measure of how large a grammar may become at its beginning. An enum of 5,000 words takes half of it.
#: With five times as much, llguidance's own limit, a dozen characters ("(a{600}){500}") make a grammar of 100 MB, which
#: the cache keeps, and whose mask keeps a whole batch waiting for a tenth of a second, in every step.
_MOST_EXPRESSIONS: Final = 200_000
#: Its limits of one step. Public schemas of configuration files need less than a tenth of them.
_MOST_EXPRESSIONS_A_STEP: Final = 100_000
_MOST_ITEMS_A_STEP: Final = 20_000
#: States take one or two kilobytes each.
_MOST_STATES: Final = 50_000


class TrialLimits(msgspec.Struct, frozen=True, array_like=True):
    """The limits of a trial, beyond which its process is killed.

    Attributes:
        cpu_s: seconds of processor time.
        memory_bytes: more address space than it begins with.
        at_once: how many trials are made at once.
        wall_s: seconds in all, for processes that get no processor.
        niceness: the process's nice value, so that the engine's steps come first.
    """

    cpu_s: float
    memory_bytes: int = 256 * _MIB
    at_once: int = 1
    wall_s: float = 30.0
    niceness: int = 0


#: A grammar that is not compiled within one row's limits is tried with the next's, in a queue of its own: the slow keep
#: no quick one waiting. Most schemas take 3 ms, an enum of 5,000 words 30, an integer that is a multiple of 99,991 700.
TRIALS: Final = (
    TrialLimits(cpu_s=0.02, at_once=2),
    TrialLimits(cpu_s=0.2, niceness=5),
    TrialLimits(cpu_s=2.0, niceness=10, wall_s=60.0),
)


class StepBudget:
    """The remaining processor time of a sequence's grammar for its steps."""

    def __init__(self) -> None:
        self._left_s = STEP_SAVINGS_S

    def charge(self, cpu_s: float) -> None:
        """Subtract a token's cost."""
        self._left_s = min(self._left_s + STEP_ALLOWANCE_S, STEP_SAVINGS_S) - cpu_s

    @property
    def spent(self) -> bool:
        """Whether the grammar has cost more than it may."""
        return self._left_s < 0


def parser_limits() -> LLParserLimits:
    """llguidance's own limits."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=_MOST_EXPRESSIONS,
        step_lexer_fuel=_MOST_EXPRESSIONS_A_STEP,
        step_max_items=_MOST_ITEMS_A_STEP,
        max_lexer_states=_MOST_STATES,
    )
