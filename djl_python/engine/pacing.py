"""How much of the waiting prompts a step may read without making the sequences that generate wait. Engine process.

A client that reads a stream notices the gaps that are longer than the usual one. While somebody generates, a step that
reads prompts may take 2.8 times as long as one that reads none; what that is in tokens is learnt from the steps. With
nobody to wait, a step reads as much as fits.

Many prompts at once are read at the same pace. The last of them waits longer for its first token than if all generation
stood still, in simulations by a third; but sequences that began one after the other end so, and what comes in their
place does not have to queue again.
"""

from __future__ import annotations

from typing import Final

#: How many times as long as without prompts a step may take.
STRETCH: Final = 2.8
#: Fewer tokens than this would read the weights for little.
LEAST_TOKENS: Final = 16
# Before anything was measured.
_FIRST_TOKENS: Final = 64
_WEIGHT: Final = 0.2  # of the newest measurement


class PrefillPacer:
    """Learns what steps cost.

    Args:
        most: prompt tokens of a step, ever.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._decode_s: dict[int, float] = {}  # a step without prompts, by the bit length of how many it advances
        self._token_s = 0.0  # a prompt's token more

    def budget(self, generating: int) -> int:
        """Prompt tokens of a step that advances `generating` sequences."""
        if not generating:
            return self._most
        decode_s = self._decode_s.get(generating.bit_length())
        if decode_s is None or not self._token_s:
            return min(self._most, _FIRST_TOKENS)
        return min(self._most, max(LEAST_TOKENS, int((STRETCH - 1) * decode_s / self._token_s)))

    def learn(self, generating: int, prompt_tokens: int, step_s: float) -> None:
        """A step took so long."""
        kind = generating.bit_length()
        if not prompt_tokens:
            self._decode_s[kind] = _mean(self._decode_s.get(kind, 0.0), step_s)
            return
        decode_s = self._decode_s.get(kind, 0.0) if generating else 0.0
        if prompt_tokens >= LEAST_TOKENS and step_s > decode_s and (decode_s or not generating):
            self._token_s = _mean(self._token_s, (step_s - decode_s) / prompt_tokens)


def _mean(mean: float, newest: float) -> float:
    return mean + _WEIGHT * (newest - mean) if mean else newest
