"""How much of the waiting prompts a step may read without making the sequences that generate wait. Engine process.

A client that reads a stream notices the gaps that are longer than the usual one. While somebody generates, a step that
reads prompts may take 2.8 times as long as the usual step; what that is in tokens is learnt from the steps. With nobody
to wait, a step reads as much as fits; but of several prompts only as much as is read well at once. Read together, all
would have their first tokens when the last is read, then end together, and so would whoever comes in their place.

The usual step is one without prompts. Where prompts come faster than they are read at that pace, so that nearly every
step has some, it is what has become usual: the pace quickens, instead of leaving the batch half empty.

Of many prompts at once the last waits longer for its first token than if all generation stood still, in simulations by
a third; but sequences that began one after the other end so, and what comes in their place does not have to queue
again. So they are read only a little faster than few.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

#: How many times as long as usual a step may take; more for each prompt that waits beside a few others.
STRETCH: Final = 2.8
QUEUE_STRETCH: Final = 0.3
#: That, at most; and how many times as long as one without prompts, however usual that has become.
MOST_STRETCH: Final = 4.0
MOST_DECODE_STEPS: Final = 8.0
#: Fewer tokens than this would read the weights for little.
LEAST_TOKENS: Final = 16
#: As many steps with prompts, and one has none: what that costs changes with the machine and the contexts.
CHECKED_EVERY: Final = 50
#: As many times as long as one without prompts may a step take that reads several, with nobody to wait: by then, to
#: read weights once for more of their tokens saves nothing.
WELL_READ_STEPS: Final = 8.0
# Before anything was measured; with nobody to wait.
_FIRST_TOKENS: Final = 64
_FIRST_ALONE: Final = 512
_WEIGHT: Final = 0.2  # of the newest measurement
# Steps that say what is usual: what all but this share of the last ones took at least.
_REMEMBERED: Final = 256
_SHORTER: Final = 0.3
_FEW: Final = 3  # prompts are no queue


class PrefillPacer:
    """Learns what steps cost.

    Args:
        most: prompt tokens of a step, ever.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._decode: dict[int, _Mean] = {}  # steps without prompts, by the bit length of how many they advance
        self._token_s = 0.0  # a prompt's token more
        self._unchecked = 0  # steps with prompts since one had none
        self._taken: deque[float] = deque(maxlen=_REMEMBERED)  # by steps that somebody waited for

    def budget(self, generating: int, prompts: int = 1) -> int:
        """Tokens of `prompts` for a step that advances `generating` sequences; 0 to see what it costs without them."""
        if not generating:
            return self._most if prompts == 1 else self._well_read()
        decode_s = self._decode_s(generating)
        if not decode_s or self._unchecked >= CHECKED_EVERY:
            return 0
        if not self._token_s:
            return min(self._most, _FIRST_TOKENS)
        stretch = min(STRETCH + QUEUE_STRETCH * max(0, prompts - _FEW), MOST_STRETCH)
        longest_s = min(stretch * max(decode_s, self._usual_s()), MOST_DECODE_STEPS * decode_s)
        return min(self._most, max(LEAST_TOKENS, int((longest_s - decode_s) / self._token_s)))

    def _well_read(self) -> int:
        """Tokens beyond which a step of prompts alone saves nothing."""
        decode_s = self._decode_s(1)
        if not decode_s or not self._token_s:
            return min(self._most, _FIRST_ALONE)
        return min(self._most, max(LEAST_TOKENS, int(WELL_READ_STEPS * decode_s / self._token_s)))

    def learn(self, generating: int, prompt_tokens: int, step_s: float) -> None:
        """A step took so long."""
        if generating:
            self._taken.append(step_s)
        if not prompt_tokens:
            self._unchecked = 0
            self._decode.setdefault(generating.bit_length(), _Mean()).add(generating, step_s)
            return
        decode_s = self._decode_s(generating) if generating else 0.0
        self._unchecked += bool(generating)
        if prompt_tokens >= LEAST_TOKENS and step_s > decode_s and (decode_s or not generating):
            token_s = (step_s - decode_s) / prompt_tokens
            self._token_s += (_WEIGHT if self._token_s else 1.0) * (token_s - self._token_s)

    def _decode_s(self, generating: int) -> float:
        """Of a step without prompts: between what was measured for more and for fewer sequences; 0 if nothing was."""
        known = sorted(self._decode.values(), key=lambda mean: mean.generating)
        below = next((mean for mean in reversed(known) if mean.generating <= generating), None)
        above = next((mean for mean in known if mean.generating > generating), None)
        if below is None or above is None:
            nearest = below or above
            return nearest.step_s if nearest else 0.0
        share = (generating - below.generating) / (above.generating - below.generating)
        return below.step_s + share * (above.step_s - below.step_s)

    def _usual_s(self) -> float:
        """0 as long as too few steps are remembered."""
        shorter = int(_SHORTER * _REMEMBERED) - (_REMEMBERED - len(self._taken))
        return sorted(self._taken)[shorter] if shorter >= 0 else 0.0


@dataclass
class _Mean:
    """Of recent steps: how many sequences they advanced, and how long they took."""

    generating: float = 0.0
    step_s: float = 0.0

    def add(self, generating: int, step_s: float) -> None:
        weight = _WEIGHT if self.step_s else 1.0
        self.generating += weight * (generating - self.generating)
        self.step_s += weight * (step_s - self.step_s)
