"""How many sequences a request may ask for, in whichever dialect.

Runs in the worker. The event loop that prepares and submits them is every request's, so that one without a limit would
cost the others their time.
"""

from __future__ import annotations

from typing import Final

#: Of one prompt, as OpenAI.
MAX_CHOICES: Final = 128
#: Of all prompts together.
MAX_SEQUENCES: Final = 1_024
#: The same where they are beams: each is submitted anew with every step.
MAX_BEAMS: Final = 128


def excess_sequences(prompts: int, each: int = 1, *, beams: bool = False) -> str:
    """What was expected of so many prompts with so many sequences each, and what came; "" where they are not too many.

    Sequences count that are drawn, whether they are answered with or not.
    """
    most = MAX_BEAMS if beams else MAX_SEQUENCES
    if prompts * each <= most:
        return ""
    came = f"{prompts} prompts" if each == 1 else f"{prompts} prompts with {each} each"
    return f"expected at most {most} sequences together, got {came}"
