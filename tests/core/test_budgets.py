"""Limits say what was expected, and what came."""

from __future__ import annotations

from djl_python.core.budgets import MESSAGES, Budget, budgets


def test_an_exceeded_budget_says_what_was_expected() -> None:
    budget = Budget(3, "apples", "a basket", "It holds no more.")
    assert budget.excess(3) == ""
    assert budget.excess(4) == "expected at most 3 apples, got 4"
    assert budget.excess(4, at_least=True) == "expected at most 3 apples, got at least 4"


def test_every_limit_has_its_place_and_its_reason() -> None:
    limits = list(budgets())
    assert MESSAGES in limits
    assert all(one.most > 0 and one.of and one.where and one.why.endswith(".") for one in limits)
    assert len({(one.where, one.of) for one in limits}) == len(limits)
