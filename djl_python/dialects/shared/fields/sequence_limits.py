"""How many sequences a request may ask for, in every dialect.

Runs in the worker, whose event loop prepares and submits the sequences of all requests: without a limit, one request
would take time from the others.
"""

from __future__ import annotations

from typing import Final

#: Sequences for one prompt, as in OpenAI's API.
MAX_CHOICES: Final = 128
#: Sequences for all prompts together.
MAX_SEQUENCES: Final = 1_024
#: Beams for all prompts together: a search submits each beam anew with every step.
MAX_BEAMS: Final = 128


def excess_sequences(prompts: int, each: int = 1, *, beams: bool = False) -> str:
    """Say what was expected and given if `prompts` with `each` sequences are too many; "" if they are not.

    All generated sequences count, also those that are not part of the answer.
    """
    most = MAX_BEAMS if beams else MAX_SEQUENCES
    if prompts * each <= most:
        return ""
    came = f"{prompts} prompts" if each == 1 else f"{prompts} prompts with {each} each"
    return f"expected at most {most} sequences together, got {came}"
