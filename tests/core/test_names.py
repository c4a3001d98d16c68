import pytest

from djl_python.config.binding import settings_of
from djl_python.config.settings.options import Options
from djl_python.config.settings.serving import ServingSettings
from djl_python.core.names import choices, did_you_mean, nearest, values_by_name

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


def test_the_only_choice_is_not_asked_about() -> None:
    assert choices("jsn", ["csv", "json"]) == "csv, json; did you mean json?"
    assert choices("jsn", ["json"]) == "json"


def test_values_are_read_by_name() -> None:
    assert values_by_name(" a=1 ,, b = 2.5,c=d=3 ", float, "pairs") == {"a": 1.0, "b": 2.5, "c=d": 3.0}
    assert values_by_name("", float, "pairs") == {}


@pytest.mark.parametrize("wrong", ["a", "=1", "a=", "a=x"])
def test_a_wrong_pair_of_a_name_and_a_value_is_told(wrong: str) -> None:
    with pytest.raises(ValueError, match=f"^expected pairs; {wrong} is not one$"):
        values_by_name(f"b=1,{wrong}", float, "pairs")
