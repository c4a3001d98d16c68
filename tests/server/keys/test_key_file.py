from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from djl_python.core.access.api_key import ApiKey, digest, new_secret
from djl_python.core.access.scopes import Scope
from djl_python.core.errors import ConfigError
from djl_python.server.keys.key_file import add_key, read_keys, remove_keys


def key(name: str, secret: str = "") -> ApiKey:
    return ApiKey(name=name, sha256=digest(secret or name), scopes=(Scope.INFER,))


def test_keys_are_added_read_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "keys.jsonl"
    add_key(path, key("a"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_bytes(path.read_bytes().rstrip(b"\n"))  # as an editor may leave it
    add_key(path, key("b"))
    add_key(path, key("b", "another"))
    assert read_keys(path) == (key("a"), key("b"), key("b", "another"))
    assert remove_keys(path, lambda one: one.name == "b") == (key("b"), key("b", "another"))
    assert read_keys(path) == (key("a"),)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["keys.jsonl"]


LINE = {"name": "a", "sha256": "0" * 64, "scopes": ["infer"]}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"scopes": ["infer", "probe"]}, "expected some of infer, manage, metrics, got 'probe'"),
        ({"scopes": ["admin"]}, "Invalid enum value 'admin'"),
        ({"scopes": []}, "length >= 1"),
        ({"name": "a b"}, "$.name"),
        ({"sha256": "secret"}, "$.sha256"),
        ({"expires_at": "2027-01-01"}, "$.expires_at"),
        ({"requests_per_minute": 0}, "$.requests_per_minute"),
        ({"key": "djl_plain"}, "unknown field `key`"),
    ],
)
def test_a_wrong_line_of_keys_is_refused_with_its_number(tmp_path: Path, changes: dict[str, object], told: str) -> None:
    path = tmp_path / "keys.jsonl"
    path.write_text(f"{json.dumps(LINE)}\n\n{json.dumps({**LINE, 'sha256': '1' * 64, **changes})}\n")
    with pytest.raises(ConfigError) as caught:
        read_keys(path)
    assert f"{path}:3: " in caught.value.message and told in caught.value.message


def test_other_faults_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys.jsonl"
    with pytest.raises(ConfigError, match="No such file"):
        read_keys(path)
    path.write_text("djl_plain\n")
    with pytest.raises(ConfigError, match=r"keys\.jsonl:1: JSON is malformed"):
        add_key(path, key("a"))
    assert path.read_text() == "djl_plain\n"
    path.write_text(f"{json.dumps(LINE)}\n{json.dumps(LINE)}\n")
    with pytest.raises(ConfigError, match="2: sha256: line 1 has the same key"):
        read_keys(path)


def test_secrets_are_long_and_told_apart() -> None:
    made = {new_secret() for _ in range(100)}
    assert len(made) == 100
    assert all(one.startswith("djl_") and len(one) == 4 + 43 for one in made)
