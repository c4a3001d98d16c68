"""How many prompt tokens a step may prefill without stalling the sequences that decode. Runs in the engine process.

A client that reads a stream notices inter-token gaps that are longer than usual. While any sequence decodes, a step
with prefill may take 2.8 times as long as the usual step; how many tokens that is, is learnt from past steps. While
nothing decodes, a step reads as much as fits, but of several prompts only as much as is efficient at once. Read
together, all of them would get their first tokens when the last is read, then end together, and so would the sequences
that follow them.

The usual step is a decode-only step. If prompts come faster than they are read at that pace, nearly every step has
prefill, and the usual step becomes such a step: the pace quickens, instead of leaving the batch half empty.

When many prompts come at once, the last waits longer for its first token than if all decoding stood still, in
simulations by a third. But sequences that begin one after the other also end so, and those that follow them do not have
to queue again. So many prompts are read only a little faster than few.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

#: Longest step with prefill, in usual steps; QUEUE_STRETCH more for each prompt that waits beyond a few.
STRETCH: Final = 2.8
QUEUE_STRETCH: Final = 0.3
#: Limit of that stretch; and longest step in decode-only steps, however long the usual step has become.
MAX_STRETCH: Final = 4.0
MAX_DECODE_STEPS: Final = 8.0
#: Fewer prefill tokens than this are not worth reading the weights for.
MIN_TOKENS: Final = 16
#: After this many steps with prefill, one runs without, to time decode again: its cost drifts with load and context.
DECODE_ONLY_EVERY: Final = 50
#: Longest prefill-only step, in decode steps, while several prompts wait and nothing decodes: beyond that, reading the
#: weights once for more tokens saves nothing.
MAX_PREFILL_STEPS: Final = 8.0
# Prefill tokens before anything was measured: beside decode, and while nothing decodes.
_FIRST_TOKENS: Final = 64
_FIRST_ALONE: Final = 512
_WEIGHT: Final = 0.2  # of the newest measurement
# The usual step's time: all but this share of the last remembered steps took at least as long.
_REMEMBERED: Final = 256
_USUAL_QUANTILE: Final = 0.3
_FEW: Final = 3  # prompts, which are no queue yet


class PrefillPacer:
    """Learns what steps cost, and bounds the prefill of the next one.

    Args:
        most: prefill tokens that no step may exceed.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._decode: dict[int, _Mean] = {}  # decode-only steps, by the bit length of their batch size
        self._token_s = 0.0  # of one more prefill token
        self._mixed_steps = 0  # steps with decode and prefill since one had no prefill
        self._taken: deque[float] = deque(maxlen=_REMEMBERED)  # durations of steps with decode

    def budget(self, decoding: int, prompts: int = 1) -> int:
        """Prefill tokens for a step that decodes `decoding` sequences; 0 asks for a decode-only step, to time it."""
        if not decoding:
            return self._most if prompts == 1 else self._efficient_prefill()
        decode_s = self._decode_s(decoding)
        if not decode_s or self._mixed_steps >= DECODE_ONLY_EVERY:
            return 0
        if not self._token_s:
            return min(self._most, _FIRST_TOKENS)
        stretch = min(STRETCH + QUEUE_STRETCH * max(0, prompts - _FEW), MAX_STRETCH)
        longest_s = min(stretch * max(decode_s, self._usual_s()), MAX_DECODE_STEPS * decode_s)
        return min(self._most, max(MIN_TOKENS, int((longest_s - decode_s) / self._token_s)))

    def _efficient_prefill(self) -> int:
        """Prefill tokens beyond which a prefill-only step saves nothing."""
        decode_s = self._decode_s(1)
        if not decode_s or not self._token_s:
            return min(self._most, _FIRST_ALONE)
        return min(self._most, max(MIN_TOKENS, int(MAX_PREFILL_STEPS * decode_s / self._token_s)))

    def learn(self, decoding: int, prompt_tokens: int, step_s: float) -> None:
        """Learn that a step with `decoding` decoding sequences and `prompt_tokens` prefill tokens took `step_s`."""
        if decoding:
            self._taken.append(step_s)
        if not prompt_tokens:
            self._mixed_steps = 0
            self._decode.setdefault(decoding.bit_length(), _Mean()).add(decoding, step_s)
            return
        decode_s = self._decode_s(decoding) if decoding else 0.0
        self._mixed_steps += bool(decoding)
        if prompt_tokens >= MIN_TOKENS and step_s > decode_s and (decode_s or not decoding):
            token_s = (step_s - decode_s) / prompt_tokens
            self._token_s += (_WEIGHT if self._token_s else 1.0) * (token_s - self._token_s)

    def _decode_s(self, decoding: int) -> float:
        """Seconds of a decode-only step, interpolated between those of fewer and more sequences; 0 without any."""
        known = sorted(self._decode.values(), key=lambda mean: mean.decoding)
        below = next((mean for mean in reversed(known) if mean.decoding <= decoding), None)
        above = next((mean for mean in known if mean.decoding > decoding), None)
        if below is None or above is None:
            nearest = below or above
            return nearest.step_s if nearest else 0.0
        share = (decoding - below.decoding) / (above.decoding - below.decoding)
        return below.step_s + share * (above.step_s - below.step_s)

    def _usual_s(self) -> float:
        """Seconds of the usual step; 0 while too few steps are remembered."""
        shorter = int(_USUAL_QUANTILE * _REMEMBERED) - (_REMEMBERED - len(self._taken))
        return sorted(self._taken)[shorter] if shorter >= 0 else 0.0


@dataclass
class _Mean:
    """Moving averages over decode-only steps: sequences decoded, and seconds taken."""

    decoding: float = 0.0
    step_s: float = 0.0

    def add(self, decoding: int, step_s: float) -> None:
        weight = _WEIGHT if self.step_s else 1.0
        self.decoding += weight * (decoding - self.decoding)
        self.step_s += weight * (step_s - self.step_s)
