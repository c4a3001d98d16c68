import pytest

from djl_python.core.errors import ConfigError, ModelLoadError
from djl_python.core.faults import Faults


def test_all_refusals_are_raised_together_each_line_once() -> None:
    faults = Faults()
    with faults.collected("here:1: "):
        raise ConfigError("one\ntwo")
    with faults.collected():
        raise ModelLoadError("three")
    with faults.collected():
        raise ModelLoadError("three")
    assert [*faults] == ["here:1: one", "here:1: two", "three"]
    with pytest.raises(ConfigError, match=r"^here:1: one\nhere:1: two\nthree$"):
        faults.refuse(ConfigError)


def test_without_faults_nothing_is_refused() -> None:
    faults = Faults()
    with faults.collected():
        pass
    faults.refuse()
    assert not faults


def test_errors_that_are_no_refusals_are_not_collected() -> None:
    with pytest.raises(ZeroDivisionError), Faults().collected():
        raise ZeroDivisionError
