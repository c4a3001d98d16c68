import pytest

from djl_python import Output
from djl_python.usercode.batch_keys import batch_key, item_of
from djl_python.usercode.batch_parts import is_split


@pytest.mark.parametrize(
    ("key", "item"),
    [
        ("batch_000.data", (0, "data")),
        ("batch_012_a.b\nc", (12, "a.b\nc")),
        ("batch_1234.", (1234, "")),
        ("batch_1_Content-Type", (1, "Content-Type")),  # as in DJL's older releases
        ("batch_1.data", None),  # three digits, as in DJL
        ("batch_000", None),
        ("a.batch_000.data", None),
        (None, None),
    ],
)
def test_names_of_items(key: str | None, item: tuple[int, str] | None) -> None:
    """One reading, of what handlers are given and of what they answer."""
    assert item_of(key) == item
    assert is_split(Output().add(b"x", key)) == (item is not None)


def test_a_name_that_is_made_is_read() -> None:
    assert [item_of(batch_key("k", index)) for index in (0, 7, 1000)] == [(0, "k"), (7, "k"), (1000, "k")]
