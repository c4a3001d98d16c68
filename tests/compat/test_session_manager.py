"""Sessions: values that stay, ids and keys that can't name other files, files that can't run code."""

from __future__ import annotations

import calendar
import errno
import os
import pickle
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from djl_python.core.errors import OverloadedError, PayloadError, StorageError
from djl_python.inputs import Input
from djl_python.ipc.protocol import Call
from djl_python.session_manager import Session, SessionManager, bytes_of, names_session


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
    array = session.get("array")
    array[0, 0] = 9  # its own copy
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


def test_the_number_of_open_sessions_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = SessionManager({"sessions_path": str(tmp_path), "max_sessions": "2"})
    manager.create_session()
    two = manager.create_session()
    with pytest.raises(OverloadedError, match=r"2 sessions are open, and option.max_sessions allows 2; try"):
        manager.create_session()
    manager.close_session(two.session_id)
    manager.create_session()
    later_s = time.time() + manager.expiration + 1
    monkeypatch.setattr(time, "time", lambda: later_s)
    manager.create_session()
    assert len(list(tmp_path.iterdir())) == 1


def test_bytes_of_sessions_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = SessionManager({"sessions_path": str(tmp_path), "max_sessions_bytes": "4096"})
    one, two = manager.create_session(), manager.create_session()
    one.put("kept", bytes(3000))
    for keep in (lambda: two.put("more", bytes(1500)), lambda: two.get_as_numpy("more", (20, 20), create=True)):
        with pytest.raises(OverloadedError, match=r"of 4096 bytes \(option\.max_sessions_bytes\)"):
            keep()
    assert two.get("more") is None and bytes_of(tmp_path) < 3200
    one.put("kept", b"")
    two.put("more", bytes(1500))
    one.put("rest", bytes(4090 - bytes_of(tmp_path)))
    with pytest.raises(OverloadedError):
        manager.create_session()
    assert len(list(tmp_path.iterdir())) == 2
    later_s = time.time() + manager.expiration + 1
    monkeypatch.setattr(time, "time", lambda: later_s)
    manager.create_session().put("kept", bytes(3000))


def test_a_key_has_no_more_sessions_and_bytes_than_it_leaves_to_others(tmp_path: Path) -> None:
    limits = {"sessions_path": str(tmp_path), "max_sessions": "6", "max_sessions_bytes": "6000"}
    manager = SessionManager(limits)
    mine = [manager.create_session("a") for _ in range(3)]
    with pytest.raises(OverloadedError, match=r"3 sessions are open, .* as much as is left for others"):
        manager.create_session("a")
    mine[0].put("much", bytes(2500))
    with pytest.raises(OverloadedError, match="as much as is left for others"):
        mine[1].put("more", bytes(1000))
    manager.create_session("b").put("some", bytes(1000))
    assert manager.close_session(mine[2].session_id) and manager.create_session("b")
    for _ in range(2):  # a handler's own belong to no key
        manager.create_session()


def test_values_of_expired_sessions_make_room(tmp_path: Path) -> None:
    limits = {"sessions_path": str(tmp_path), "max_sessions_bytes": "4096"}
    old = SessionManager({**limits, "sessions_expiration": "1"}).create_session()
    new = SessionManager(limits).create_session()
    old.put("kept", bytes(3000))
    old.put(".expiration_time", time.time() - 1)
    new.put("kept", bytes(3000))
    assert not Path(old.files_path).exists()


def test_a_session_that_was_only_begun_goes(manager: SessionManager) -> None:
    begun = Path(manager.sessions_path, "8a4f1f4e-1c5e-4a53-9a3b-0c8f6f6d2f11")
    begun.mkdir()
    manager.create_session()
    assert begun.exists()  # its worker may be about to write when it expires
    os.utime(begun, (0, 0))
    manager.create_session()
    assert not begun.exists()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk(manager: SessionManager, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    session = manager.create_session()
    before = sorted(os.listdir(session.files_path))

    def full(path: Path, data: bytes) -> None:
        path.touch()
        raise OSError(code, "no room")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(StorageError, match="can't write this to its disk: no room"):
        session.put("key", 1)
    assert sorted(os.listdir(session.files_path)) == before
    with pytest.raises(StorageError):
        manager.create_session()
    assert len(os.listdir(manager.sessions_path)) == 1


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


# ------------------------------------------------------------------------------------------------ requests

SESSION, CLOSED = "X-Amzn-SageMaker-Session-Id", "X-Amzn-SageMaker-Closed-Session-Id"


def request(body: bytes, session_id: str | None = None) -> Input:
    headers = {"content-type": "application/json"} | ({} if session_id is None else {SESSION.lower(): session_id})
    return Input.from_call(Call(1, "lmi", "predict", "POST", "/invocations", (), headers, body))


NEW, CLOSE = b'{"requestType": "NEW_SESSION"}', b'{"requestType": "CLOSE"}'


def test_requests_open_and_close_a_session(manager: SessionManager) -> None:
    opened = manager.respond(request(NEW, "NEW_SESSION"))
    assert opened is not None
    session_id, _, expires = opened.properties[SESSION].partition("; Expires=")
    left_s = calendar.timegm(time.strptime(expires, "%Y-%m-%dT%H:%M:%SZ")) - time.time()
    assert manager.expiration - 60 < left_s <= manager.expiration
    assert opened.content.value_at(0) == b'{"result":"Session %b created"}' % session_id.encode()
    assert manager.respond(request(b'{"inputs": "x"}', session_id)) is None
    closed = manager.respond(request(CLOSE, session_id))
    assert closed is not None and closed.properties == {CLOSED: session_id}
    assert not Path(manager.sessions_path, session_id).exists()


@pytest.mark.parametrize(
    ("body", "session_id", "says"),
    [
        (b'{"inputs": "x"}', "8a4f1f4e-1c5e-4a53-9a3b-0c8f6f6d2f11", "there is no session '8a4f"),
        (b'{"inputs": "x"}', "../../etc", "there is no session '../../etc'"),
        (b'{"inputs": "x"}', "NEW_SESSION", "send a body with requestType"),
        (CLOSE, "/", "there is no session '/'"),
        (CLOSE, None, "requestType: CLOSE needs a session's id in the header X-Amzn-SageMaker-Session-Id"),
        (b'{"requestType": "PAUSE"}', None, "requestType: expected NEW_SESSION or CLOSE, got 'PAUSE'"),
        (b'{"requestType": ["NEW_SESSION"]}', None, "requestType: expected NEW_SESSION or CLOSE"),
    ],
)
def test_requests_without_their_session(
    manager: SessionManager, body: bytes, session_id: str | None, says: str
) -> None:
    with pytest.raises(PayloadError, match=re.escape(says)):
        manager.respond(request(body, session_id))


def test_another_keys_session_is_unknown(manager: SessionManager) -> None:
    def of(key: str, body: bytes, session_id: str | None, *, is_manager: bool = False) -> Any:
        headers = {} if session_id is None else {SESSION.lower(): session_id}
        call = Call(1, "lmi", "predict", "POST", "/invocations", (), headers, body, key_name=key, is_manager=is_manager)
        return manager.respond(Input.from_call(call))

    session_id = of("a", NEW, None).properties[SESSION].partition(";")[0]
    unknown = "8a4f1f4e-1c5e-4a53-9a3b-0c8f6f6d2f11"
    for body in (b"{}", CLOSE):
        said = []
        for one in (session_id, unknown):
            with pytest.raises(PayloadError) as refused:
                of("b", body, one)
            said.append(refused.value.message.replace(one, "ID"))
        assert said[0] == said[1]
    assert of("a", b"{}", session_id) is None and of("operator", b"{}", session_id, is_manager=True) is None


@pytest.mark.parametrize(
    "body", [b"", b"requestType", b'["requestType"]', b'{"inputs": "requestType"}', b"[" * 100_000]
)
def test_other_requests_have_none(manager: SessionManager, body: bytes) -> None:
    assert manager.respond(request(body)) is None and not names_session(request(body))


def test_a_directory_of_another_user_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    with pytest.raises(ValueError, match=r"option\.sessions_path: .* is another user's"):
        SessionManager({"sessions_path": str(tmp_path)})
