"""Sessions: values that stay, ids and keys that can't name other files, files that can't run code."""

from __future__ import annotations

import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from djl_python.session_manager import Session, SessionManager


@pytest.fixture
def manager(tmp_path: Path) -> SessionManager:
    return SessionManager({"sessions_path": str(tmp_path / "sessions")})


@pytest.mark.parametrize("value", [None, 5, "text", {"a": [1, 2.5]}, b"\x00bytes", bytearray(b"more")])
def test_values_stay_between_requests(manager: SessionManager, value: Any) -> None:
    session = manager.create_session()
    session.put("key", value)
    again = manager.get_session(session.session_id)
    assert again is not None
    assert again.get("key") == value
    assert again.get("other", "nothing") == "nothing"
    assert again.get("other") is None


def test_arrays(manager: SessionManager) -> None:
    session = manager.create_session()
    session.put("array", np.arange(6).reshape(2, 3))
    found = session.get("array")
    found[0, 0] = 9  # its own copy
    np.testing.assert_array_equal(session.get("array"), np.arange(6).reshape(2, 3))
    kept = session.get_as_numpy("kept", (2, 2), create=True)
    kept[1] = 7
    kept.flush()
    np.testing.assert_array_equal(session.get_as_numpy("kept", (2, 2)), [[0, 0], [7, 7]])
    with pytest.raises(FileNotFoundError):
        session.get_as_numpy("none", (2,))


def test_sessions_close_and_expire(manager: SessionManager, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = manager.create_session(), manager.create_session()
    assert one.session_id != two.session_id
    assert manager.close_session(one.session_id)
    assert not manager.close_session(one.session_id)
    assert manager.get_session(one.session_id) is None
    later_s = time.time() + manager.expiration + 1
    monkeypatch.setattr(time, "time", lambda: later_s)
    assert manager.get_session(two.session_id) is None
    assert not Path(two.files_path).exists()
    manager.create_session()


def test_a_new_session_takes_the_place_of_expired_ones(
    manager: SessionManager, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old = manager.create_session()
    beside = tmp_path / "sessions" / "not-a-session"
    beside.mkdir()
    later_s = time.time() + manager.expiration + 1
    monkeypatch.setattr(time, "time", lambda: later_s)
    new = manager.create_session()
    assert (Path(old.files_path).exists(), Path(new.files_path).exists(), beside.exists()) == (False, True, True)


@pytest.mark.parametrize("trick", ["", ".", "..", "../x", "/etc", "{}/..", "../{}", "{}\n", "{}x", " {}", None, 5])
def test_an_id_names_no_path(manager: SessionManager, tmp_path: Path, trick: Any) -> None:
    session = manager.create_session()
    victim = tmp_path / "victim"
    victim.mkdir()
    wrong = trick.replace("{}", session.session_id) if isinstance(trick, str) else trick
    for function in (manager.get_session, manager.close_session, lambda name: Session(name, tmp_path)):
        with pytest.raises(ValueError, match="invalid session_id"):
            function(wrong)
    assert victim.is_dir()
    assert Path(session.files_path).is_dir()


@pytest.mark.parametrize("key", ["", ".", "..", "../x", "a\x00b", "x" * 200])
def test_a_key_names_no_path(manager: SessionManager, key: str) -> None:
    session = manager.create_session()
    for function in (session.get, lambda name: session.put(name, 1)):
        if key == "../x":  # "/" is written as "-", as in DJL
            key = "..-x"
        with pytest.raises(ValueError, match="a session has no key"):
            function(key)
    session.put("a/b", 1)
    assert (session.get("a-b"), session.get("a/b")) == (1, 1)


def test_nothing_is_unpickled(manager: SessionManager) -> None:
    session = manager.create_session()
    Path(session.files_path, "planted").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(ValueError, match="no value that `put` has written"):
        session.get("planted")
    for value in (object(), np.array([object()])):
        with pytest.raises((TypeError, ValueError)):
            session.put("key", value)
    assert session.get("key") is None


def test_settings(tmp_path: Path) -> None:
    path = str(tmp_path)
    assert SessionManager({"sessions_path": path}).expiration == 1200
    assert SessionManager({"sessions_path": path, "sessions_expiration": "5"}).expiration == 5
    with pytest.raises(ValueError, match="sessions_s3url"):
        SessionManager({"sessions_path": path, "sessions_s3url": "s3://bucket"})
