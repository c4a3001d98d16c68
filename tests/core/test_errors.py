import pytest

from djl_python.core.errors import MemoryLoadError, ModelLoadError, lacks_memory, load_error


class OutOfMemoryError(RuntimeError):
    """Named as torch's."""


def raised_from(cause: BaseException) -> BaseException:
    try:
        raise ModelLoadError("no place for the weights") from cause
    except ModelLoadError as error:
        return error


@pytest.mark.parametrize(
    ("error", "lacks"),
    [
        (MemoryError(), True),
        (OutOfMemoryError(), True),
        (MemoryLoadError("no room"), True),
        (raised_from(OutOfMemoryError()), True),
        (raised_from(ValueError()), False),
        (ModelLoadError("no memory"), False),  # its words are for people
        (None, False),
    ],
)
def test_errors_about_missing_memory_are_recognized(error: BaseException | None, lacks: bool) -> None:
    assert lacks_memory(error) is lacks


@pytest.mark.parametrize(("no_memory", "status"), [(True, 507), (False, 500)])
def test_an_error_of_another_process(no_memory: bool, status: int) -> None:
    error = load_error("why", no_memory=no_memory)
    assert (error.status, error.message) == (status, "why") and isinstance(error, ModelLoadError)
