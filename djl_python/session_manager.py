"""Stateful sessions: what a handler keeps between requests of one client, in files.

Runs in the worker. A session is a directory under option.sessions_path, named by a random id, so that all workers of a
model share it. Values are JSON, bytes or numpy arrays: nothing is pickled, since a session's file could be another's.

    sessions = SessionManager(inputs.get_properties())
    session = sessions.create_session()
    session.put("turns", 1)
    sessions.get_session(session.session_id).get("turns")
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from .formats.json_framing import encode_finite_json

_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_KEY: Final = re.compile(r"\.?[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}")
_CREATED: Final = ".creation_time"
_EXPIRES: Final = ".expiration_time"
DEFAULT_EXPIRATION_S: Final = 20 * 60
#: The first byte of a value's file says what the rest is.
_JSON: Final = b"j"
_BYTES: Final = b"b"
_ARRAY: Final = b"a"


class Session:
    """The values of one session. A key is made of letters, digits, `_`, `-` and `.`; "/" is written as "-".

    Attributes:
        session_id: its id, a UUID.
        files_path: its directory, as text.
    """

    def __init__(self, session_id: str, session_root: str | Path) -> None:
        self.session_id = session_id
        self.files_path = str(Path(session_root, checked(session_id)))

    def put(self, key: str, value: Any) -> None:
        """Keep a value: bytes, a numpy array, or what JSON has.

        Raises:
            ValueError: the key is none, or JSON has no such number.
            TypeError: the value is none of these.
        """
        if isinstance(value, bytes | bytearray | memoryview):
            data = _BYTES + bytes(value)
        elif hasattr(value, "__array_interface__"):
            data = _ARRAY + _npy(value)
        else:
            data = _JSON + encode_finite_json(value)
        path = self._path(key)
        written = path.with_name(f"{path.name}~{uuid.uuid4().hex}")
        written.write_bytes(data)
        written.replace(path)  # at once: another worker reads the one value or the other

    def get(self, key: str, d: Any = None) -> Any:
        """A value, or `d` where there is none.

        Raises:
            ValueError: the key is none, or the file holds no value of a session.
        """
        try:
            data = self._path(key).read_bytes()
        except FileNotFoundError:
            return d
        kind, content = data[:1], data[1:]
        if kind == _JSON:
            return msgspec.json.decode(content)
        if kind == _BYTES:
            return content
        if kind == _ARRAY:
            from .np_util import from_nd_list

            return from_nd_list(content)[0].copy()
        raise ValueError(f"session {self.session_id}: {key!r} is no value that `put` has written")

    def get_as_numpy(self, key: str, shape: Any, dtype: Any = "float32", create: bool = False) -> Any:
        """An array in a file of its own, which keeps what is written to it; with `create`, a new one of zeros.

        Raises:
            FileNotFoundError: there is none, and `create` is false.
        """
        import numpy as np

        path = self._path(key)
        return np.memmap(path, dtype=dtype, mode="w+" if create else "r+", shape=shape)

    def remove(self) -> bool:
        """Delete the session; whether there was one."""
        existed = Path(self.files_path).is_dir()
        shutil.rmtree(self.files_path, ignore_errors=True)
        return existed

    def _path(self, key: str) -> Path:
        name = key.replace("/", "-")
        if not _KEY.fullmatch(name):
            raise ValueError(f"a session has no key {key!r}: expected letters, digits, '_', '-' and '.'")
        return Path(self.files_path, name)


class SessionManager:
    """The sessions of a model.

    Properties: `sessions_path`, a directory (default: in shared memory, else among temporary files), and
    `sessions_expiration`, in seconds (default 1200). Expired sessions are deleted when a new one is made.

    Raises:
        ValueError: `sessions_s3url` is set: sessions are not copied to S3.
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        if properties.get("sessions_s3url"):
            raise ValueError("option.sessions_s3url: sessions are kept in option.sessions_path alone")
        self.expiration = int(properties.get("sessions_expiration") or DEFAULT_EXPIRATION_S)
        shared = Path("/dev/shm")
        default = (shared if shared.is_dir() else Path(tempfile.gettempdir())) / "djl_sessions"
        self.sessions_path = str(properties.get("sessions_path") or default)
        Path(self.sessions_path).mkdir(mode=0o700, parents=True, exist_ok=True)

    def create_session(self) -> Session:
        """A new session."""
        self._clean_expired()
        session = Session(str(uuid.uuid4()), self.sessions_path)
        Path(session.files_path).mkdir(mode=0o700)
        now_s = time.time()
        session.put(_CREATED, now_s)
        session.put(_EXPIRES, now_s + self.expiration)
        return session

    def get_session(self, session_id: str) -> Session | None:
        """The session with an id; None where it is unknown, closed or expired.

        Raises:
            ValueError: this is no id of a session.
        """
        session = Session(session_id, self.sessions_path)
        expires_s = session.get(_EXPIRES)  # None: another worker is about to write it, or there is no such session
        if expires_s is None:
            return None
        if expires_s > time.time():
            return session
        session.remove()
        return None

    def close_session(self, session_id: str) -> bool:
        """Delete a session; whether there was one.

        Raises:
            ValueError: this is no id of a session.
        """
        return Session(session_id, self.sessions_path).remove()

    def _clean_expired(self) -> None:
        for path in Path(self.sessions_path).iterdir():
            if _ID.fullmatch(path.name):
                self.get_session(path.name)


def checked(session_id: str) -> str:
    """The id itself.

    Raises:
        ValueError: it is not a UUID as `create_session` makes them, and could name a path.
    """
    if not isinstance(session_id, str) or not _ID.fullmatch(session_id):
        raise ValueError(f"invalid session_id: {session_id!r}")
    return session_id


def _npy(array: Any) -> bytes:
    import io

    import numpy as np

    out = io.BytesIO()
    np.save(out, array, allow_pickle=False)
    return out.getvalue()
