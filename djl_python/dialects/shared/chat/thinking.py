"""A chat's settings of reasoning, under the names of vLLM, DashScope and Anthropic: on or off, and a budget of tokens.

Runs in the worker. Each chat template has its own variable for a switch or a budget; the handler sees which it reads.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from ....core.errors import ParameterError
from ....core.types import ThinkingBudget
from ..token_reports import TokenReportFields

Budget = Annotated[int, Meta(ge=0)]
#: Chat templates' names of the variable that switches reasoning on and off.
SWITCHES: Final = ("enable_thinking", "thinking")
_BUDGETS: Final = ("thinking_token_budget", "thinking_budget", "thinking.budget_tokens")


class Thinking(msgspec.Struct, frozen=True):
    """Anthropic's: whether the model reasons ("adaptive": as it likes), and for how many tokens at most."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Budget | None = None


class ThinkingFields(TokenReportFields, frozen=True, kw_only=True):
    """The generation fields, and those about reasoning. None: not given, or given as null."""

    reasoning_effort: Annotated[str, Meta(description="A variable of the chat template.")] | None = None
    thinking_token_budget: (
        Annotated[Budget, Meta(description="vLLM's: tokens of reasoning at most; then the model has to answer.")] | None
    ) = None
    thinking_budget: Annotated[Budget, Meta(description="The same, under DashScope's name.")] | None = None
    thinking: Thinking | None = None


def thinking_budget(fields: ThinkingFields) -> ThinkingBudget | None:
    """The tokens that the reasoning may have; None: no limit.

    Raises:
        ParameterError: several fields differ, or the reasoning is not enabled.
    """
    thinking = fields.thinking
    inner = None if thinking is None else thinking.budget_tokens
    if thinking is not None and thinking.type != "enabled" and inner is not None:
        raise ParameterError('thinking.budget_tokens: only where thinking.type is "enabled"', "thinking.budget_tokens")
    values = (fields.thinking_token_budget, fields.thinking_budget, inner)
    given = {name: tokens for name, tokens in zip(_BUDGETS, values, strict=True) if tokens is not None}
    if not given:
        return None
    first, *others = given
    for name in others:
        if given[name] != given[first]:
            raise ParameterError(f"{name}: the same as {first}, and they differ", name)
    # The object has an effect if its budget has one.
    return ThinkingBudget(given[first], first.partition(".")[0])


def thinking_variables(fields: ThinkingFields) -> tuple[dict[str, Any], dict[str, str]]:
    """Variables for the chat template, and the field of each."""
    variables: dict[str, Any] = {}
    sources: dict[str, str] = {}
    if fields.thinking is not None and fields.thinking.type != "adaptive":
        variables = dict.fromkeys(SWITCHES, fields.thinking.type == "enabled")
        sources = dict.fromkeys(SWITCHES, "thinking")
    budget = thinking_budget(fields)
    if budget is not None:
        variables["thinking_budget"] = budget.tokens
        sources["thinking_budget"] = budget.field
    return variables, sources
