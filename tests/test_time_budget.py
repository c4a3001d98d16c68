from __future__ import annotations

import pytest

from tests.time_budget import TimeBudget


def marked(request: pytest.FixtureRequest, *marks: str) -> pytest.Item:
    """An item of its own for each case: a mark stays on its node."""
    item = pytest.Function.from_parent(request.node.parent, name="each", callobj=lambda: None)
    for mark in marks:
        item.add_marker(mark)
    return item


def test_slow_tests_begin_until_the_time_is_over(request: pytest.FixtureRequest) -> None:
    clock_s = [0.0]
    budget = TimeBudget(2, lambda: clock_s[-1])
    slow, quick = marked(request, "slow"), marked(request)
    clock_s.append(119.0)
    budget.pytest_runtest_setup(slow)
    clock_s.append(121.0)
    budget.pytest_runtest_setup(quick)
    with pytest.raises(pytest.skip.Exception, match="for 2 minutes"):
        budget.pytest_runtest_setup(slow)
