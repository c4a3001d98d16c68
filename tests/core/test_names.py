import pytest

from djl_python.config.binding import settings_of
from djl_python.config.settings import Options, ServingSettings
from djl_python.core.names import did_you_mean, nearest

KNOWN = [s.key for s in settings_of(ServingSettings)] + [s.key for s in settings_of(Options, "option.")]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("option.max_rolling_batchsize", "option.max_rolling_batch_size"),
        ("option.Dtype", "option.dtype"),
        ("option.entrypoint", "option.entryPoint"),
        ("minworkers", "minWorkers"),
        ("dtype", "option.dtype"),
        ("option.batch_size", "batch_size"),
        ("options.dtype", "option.dtype"),
        ("option.temperature_of_the_room", ""),
    ],
)
def test_nearest(key: str, expected: str) -> None:
    assert nearest(key, KNOWN) == expected


def test_a_suggestion_is_the_end_of_a_sentence() -> None:
    assert did_you_mean("numpi", ["numpy", "torch"]) == "; did you mean numpy?"
    assert did_you_mean("numpi", ["torch"]) == ""
