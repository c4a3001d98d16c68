"""Java's .properties syntax."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from djl_python.config.properties_file import parse_properties, read_properties
from djl_python.core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1", [(1, "a", "1")]),
        ("a:1", [(1, "a", "1")]),
        ("a 1", [(1, "a", "1")]),
        ("  a \t = \t 1", [(1, "a", "1")]),
        ("a==1", [(1, "a", "=1")]),
        ("a = b = c", [(1, "a", "b = c")]),
        ("a=x:y", [(1, "a", "x:y")]),
        ("a", [(1, "a", "")]),
        ("a=", [(1, "a", "")]),
        ("a=1 ", [(1, "a", "1 ")]),
        ("# no\n! no\n  # no\n\na=1", [(5, "a", "1")]),
        ("a=1 # part of it", [(1, "a", "1 # part of it")]),
        ("a=one,\\\n   two,\\\n\tthree\nb=2", [(1, "a", "one,two,three"), (4, "b", "2")]),
        ("a=1\\\n# not a comment", [(1, "a", "1# not a comment")]),
        ("# a comment does not go on \\\na=1", [(2, "a", "1")]),
        ("a=back\\\\\nb=2", [(1, "a", "back\\"), (2, "b", "2")]),
        ("a=end\\", [(1, "a", "end")]),
        (r"a\=b\:c\ d=1", [(1, "a=b:c d", "1")]),
        (r"a=\t\n\u00e9\q", [(1, "a", "\t\né" + "q")]),
        (r"a=\ud83d\ude00", [(1, "a", "😀")]),
        ("a=日本", [(1, "a", "日本")]),
        ("a=1\r\nb=2\rc=3", [(1, "a", "1"), (2, "b", "2"), (3, "c", "3")]),
        ("=1", [(1, "", "1")]),
        ("", []),
    ],
)
def test_syntax(text: str, expected: list[tuple[int, str, str]]) -> None:
    assert list(parse_properties(text)) == expected


def escaped(text: str, marks: str) -> str:
    """Text as `java.util.Properties.store` writes it: these marks with a backslash, others than ASCII as UTF-16."""
    written = "".join(f"\\{one}" if one in marks or one == "\\" else one for one in text)
    return "".join(one if " " <= one <= "~" else f"\\u{unit:04x}" for one in written for unit in _utf16_units(one))


_TEXT = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("=:#! \\\t\n\r\f\u2028\x85\0"))


@given(
    st.lists(st.tuples(_TEXT.filter(bool), _TEXT)),
    st.sampled_from(["=", ":", " ", " = ", "\t:"]),
    st.sampled_from(["\n", "\r", "\r\n"]),
)
def test_escaped_properties_are_read_as_they_were_written(
    pairs: list[tuple[str, str]], separator: str, end: str
) -> None:
    lines = [f"{escaped(key, '=:#! ')}{separator}{escaped(value, '=:#! ')}" for key, value in pairs]
    assert list(parse_properties(end.join(lines))) == [(line, *pair) for line, pair in enumerate(pairs, 1)]


@given(st.text())
def test_any_text_is_read_or_refused_with_its_line(text: str) -> None:
    try:
        lines = [number for number, _, _ in parse_properties(text, "f")]
    except ConfigError as error:
        assert error.message.startswith("f:")
    else:
        assert lines == sorted(set(lines))


def test_every_value_survives_escaping() -> None:
    """Whatever is escaped comes back as it was."""
    value = "".join(map(chr, range(1, 256))) + "→😀"
    escaped = "".join(f"\\u{unit:04x}" for unit in _utf16_units(value))
    assert list(parse_properties(f"key={escaped}")) == [(1, "key", value)]


def test_malformed_escape_names_its_line() -> None:
    with pytest.raises(ConfigError, match=r"^f:2: malformed escape '\\\\u12'; expected \\uXXXX$"):
        list(parse_properties("a=1\nb=\\u12", "f"))


def test_duplicates_are_reported_and_the_last_one_counts(tmp_path: Path) -> None:
    path = tmp_path / "serving.properties"
    path.write_text("\ufeffa=1\nb=2\na=3\n", encoding="utf-8")
    entries, warnings = read_properties(path)
    assert entries == {"a": ("3", "serving.properties:3"), "b": ("2", "serving.properties:2")}
    assert warnings == ["serving.properties:3: a replaces the one of serving.properties:1"]


def test_unreadable_files(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"a=\xe9")
    with pytest.raises(ConfigError, match="latin: not UTF-8 text"):
        read_properties(tmp_path / "latin")
    with pytest.raises(ConfigError, match="none: No such file or directory"):
        read_properties(tmp_path / "none")


def _utf16_units(text: str) -> list[int]:
    data = text.encode("utf-16-be")
    return [int.from_bytes(data[i : i + 2], "big") for i in range(0, len(data), 2)]
