"""How much of the waiting prompts a step may read without making the sequences that generate wait. Engine process.

A client that reads a stream notices the gaps that are longer than the usual one. While somebody generates and a prompt
waits, a step may take 2.25 times as long as without prompts; with several, more, by the square of their number. What
that is in tokens is learnt from the steps. While more sequences wait for their first token than for their next, and
with nobody to wait, a step reads as much as fits.
"""

from __future__ import annotations

from typing import Final

#: How many times as long as without prompts a step may take, and how much of that for the prompts that wait, squared.
STRETCH: Final = 1.25
STRETCH_BY_PROMPT: Final = 1.0
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

    def budget(self, generating: int, waiting: int) -> int:
        """Prompt tokens of a step that advances `generating` sequences, with `waiting` whose prompts aren't read."""
        if waiting > generating:
            return self._most
        decode_s = self._decode_s.get(generating.bit_length())
        if decode_s is None or not self._token_s:
            return min(self._most, _FIRST_TOKENS)
        spare_s = (STRETCH + STRETCH_BY_PROMPT * waiting**2 - 1) * decode_s
        return min(self._most, max(LEAST_TOKENS, int(spare_s / self._token_s)))

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
