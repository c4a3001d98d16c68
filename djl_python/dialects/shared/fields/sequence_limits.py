"""How many sequences a request may ask for, in every dialect.

Runs in the worker, whose event loop prepares and submits the sequences of all requests: without a limit, one request
would take time from the others.
"""

from __future__ import annotations

from ....core import budgets


def excess_sequences(prompts: int, each: int = 1, *, beams: bool = False) -> str:
    """The words of a refusal if `prompts` with `each` sequences are too many; "" if they are not.

    All generated sequences count, also those that are not part of the answer.
    """
    budget = budgets.BEAMS if beams else budgets.SEQUENCES
    if prompts * each <= budget.most:
        return ""
    came = f"{prompts} prompts" if each == 1 else f"{prompts} prompts with {each} each"
    return f"expected at most {budget.most} {budget.of}, got {came}"
