from __future__ import annotations

import pytest

from djl_python import PairList


def test_djls_methods() -> None:
    pairs = PairList()
    assert pairs.is_empty() and pairs.size() == 0
    pairs.add("a", b"1")
    pairs.add(value=b"")  # an empty value is a value
    pairs.add(pair=("a", b"3"))
    pairs.add("first", b"0", index=0)
    assert list(pairs) == [("first", b"0"), ("a", b"1"), (None, b""), ("a", b"3")]
    assert pairs.get("a") == b"1"
    assert pairs.get("none") is None
    assert (pairs.key_at(2), pairs.value_at(2)) == (None, b"")
    assert pairs.get_keys() == ["first", "a", None, "a"]
    assert pairs.get_values() == [b"0", b"1", b"", b"3"]
    assert pairs.contains("a") and not pairs.contains("b")


def test_ways_to_make_one() -> None:
    assert list(PairList(["a"], [1])) == list(PairList(pair_list=[("a", 1)])) == list(PairList(pair_map={"a": 1}))
    both = PairList(["a"], [1])
    both.add_all(PairList(["b"], [2]))
    both.add_all(None)
    assert list(both) == [("a", 1), ("b", 2)]
    with pytest.raises(ValueError, match="1 keys for 0 values"):
        PairList(["a"], [])
