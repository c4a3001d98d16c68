from __future__ import annotations

import logging
import os
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from djl_python.core.access.api_key import ApiKey, digest, given_keys
from djl_python.core.access.scopes import Scope
from djl_python.core.errors import ConfigError, UnauthorizedError
from djl_python.server.keys.key_file import add_key, remove_keys
from djl_python.server.keys.keyring import LOOK_EVERY_S, Keyring


def key(name: str, **more: object) -> ApiKey:
    return ApiKey(name=name, sha256=digest(f"secret of {name}"), scopes=(Scope.INFER,), **more)  # type: ignore[arg-type]


def who(keyring: Keyring, **headers: str) -> str:
    """The name of the key that these headers have; "" if they have none that is valid."""
    try:
        return keyring.key_of({name.replace("_", "-"): value for name, value in headers.items()}).name
    except UnauthorizedError:
        return ""


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_where_a_key_is_looked_for() -> None:
    keyring = Keyring(given=[key("a"), key("b")])
    for headers in (
        {"authorization": "Bearer secret of a"},
        {"authorization": "bearer  secret of a "},
        {"x_api_key": "secret of a"},
        {"api_key": "secret of a"},
        {"authorization": "Basic dXNlcjpwdw==", "x_api_key": "secret of a"},
        {"authorization": "Bearer secret of a", "x_api_key": "secret of b"},
    ):
        assert who(keyring, **headers) == "a"
    for headers in (
        {},
        {"authorization": ""},
        {"authorization": "Bearer "},
        {"authorization": "secret of a"},
        {"authorization": "Bearer secret of c", "x_api_key": "secret of a"},
        {"authorization": "Bearer secret of a,Bearer secret of b"},  # it came twice
        {"x_api_key": digest("secret of a")},
        {"cookie": "secret of a"},
    ):
        assert who(keyring, **headers) == ""


def test_a_refusal_of_a_key_has_no_part_of_the_key() -> None:
    keyring = Keyring(given=[key("old", expires_at=datetime(2020, 1, 1, tzinfo=UTC))])
    with pytest.raises(UnauthorizedError, match="You didn't provide an API key"):
        keyring.key_of({})
    with pytest.raises(UnauthorizedError, match=r"^Incorrect API key provided$"):
        keyring.key_of({"x-api-key": "djl_wrong"})
    with pytest.raises(UnauthorizedError, match="'old' has expired"):
        keyring.key_of({"x-api-key": "secret of old"})


def test_keys_of_a_command_line_are_for_inference() -> None:
    first, second = given_keys(["secret 1", "secret 2"])
    assert (first.name, second.name) == ("api-key-1", "api-key-2")
    assert first.allows(Scope.INFER) and first.allows(Scope.METRICS) and not first.allows(Scope.MANAGE)
    assert "secret" not in repr(first)


def test_a_key_that_manages_has_all_scopes() -> None:
    manager = msgspec.structs.replace(key("a"), scopes=(Scope.MANAGE,))
    assert all(manager.allows(scope) for scope in Scope)
    assert manager.sees("b") and not key("a").sees("b") and key("a").sees("a") and not key("a").sees("")


def test_a_file_that_changes_is_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, clock, told = tmp_path / "keys.jsonl", Clock(), list[set[str]]()
    add_key(path, key("a"))
    keyring = Keyring(path, [key("given")], clock, lambda names: told.append(set(names)))

    def whose(*names: str) -> list[str]:
        clock.now_s += LOOK_EVERY_S
        return [who(keyring, x_api_key=f"secret of {name}") for name in names]

    assert whose("a", "b", "given") == ["a", "", "given"]
    add_key(path, key("b"))
    assert who(keyring, x_api_key="secret of b") == ""  # it was looked at less than a second ago
    assert whose("a", "b", "given") == ["a", "b", "given"]
    remove_keys(path, lambda one: one.name == "a")
    assert whose("a", "b") == ["", "b"]
    assert told == [{"a", "given"}, {"a", "b", "given"}, {"b", "given"}]

    with caplog.at_level(logging.ERROR):
        path.write_text("{broken\n")
        assert whose("b") == whose("b") == ["b"]
        assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == [
            f"api_keys: {path}:1: JSON is malformed: object keys must be strings (byte 1); the keys are those of before"
        ]
        path.unlink()
        assert whose("b") == whose("b") == ["b"]
        assert "No such file" in caplog.records[-1].getMessage() and len(caplog.records) == 2
    add_key(path, key("c"))
    assert whose("b", "c") == ["", "c"]


def test_a_file_that_is_exchanged_by_a_link_is_noticed(tmp_path: Path) -> None:
    """As Kubernetes changes what it mounts."""
    clock = Clock()
    for name in "ab":
        (tmp_path / name).mkdir()
        add_key(tmp_path / name / "keys", key(name))
        os.utime(tmp_path / name / "keys", (0, 0))
    (tmp_path / "data").symlink_to("a")
    keyring = Keyring(tmp_path / "data" / "keys", clock=clock)
    (tmp_path / "other").symlink_to("b")
    (tmp_path / "other").replace(tmp_path / "data")
    clock.now_s += LOOK_EVERY_S
    assert who(keyring, x_api_key="secret of b") == "b"


def test_a_file_without_keys_lets_nobody_in(tmp_path: Path) -> None:
    path = tmp_path / "keys.jsonl"
    with pytest.raises(ConfigError, match="No such file"):
        Keyring(path)
    path.touch()
    assert Keyring(path).required
    assert who(Keyring(path), x_api_key="x") == ""
    assert not Keyring().required
