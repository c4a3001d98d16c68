"""Stateful sessions: what a handler keeps between requests of one client, in files.

Runs in the worker. A session is a directory under option.sessions_path, named by a random id, so that all workers of a
model share it. Values are JSON, bytes or numpy arrays: nothing is pickled, since a session's file could be another's.

    sessions = SessionManager(inputs.get_properties())
    session = sessions.create_session()
    session.put("turns", 1)
    sessions.get_session(session.session_id).get("turns")

Their number and their bytes are bounded: a new session, or a value, that there is no room for is refused until others
are closed or expire; an API key gets no more than is left for others. Workers count what is in the directory, so values
that are written at the same time may exceed the bound by what they have together.

Clients open and close sessions with requests of their own, which `SessionManager.respond` answers. Source: LMI's
"Stateful Sessions Support", and SageMaker's contract for stateful models.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from ..core.access.shares import fits, rule
from ..core.errors import OverloadedError, PayloadError, StorageError, lacks_room
from ..formats.json_framing import encode_finite_json
from ..inputs import Input
from ..outputs import Output

_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_KEY: Final = re.compile(r"\.?[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}")
_CREATED: Final = ".creation_time"
_EXPIRES: Final = ".expiration_time"
#: The name of the API key that opened it.
_OWNER: Final = ".owner"
#: A session that has no time of expiry so many seconds after it was made is one whose worker has ended.
_BEGUN_S: Final = 60
DEFAULT_EXPIRATION_S: Final = 20 * 60
DEFAULT_MOST: Final = 1000
DEFAULT_MOST_BYTES: Final = 1 << 30
#: SageMaker's headers, of requests and of answers.
_SESSION_HEADER: Final = "X-Amzn-SageMaker-Session-Id"
_CLOSED_HEADER: Final = "X-Amzn-SageMaker-Closed-Session-Id"
#: The field of a request about a session, and its values.
_REQUEST_TYPE: Final = "requestType"
#: Bytes of its body; longer ones are not looked at.
_LONGEST_REQUEST: Final = 4096
_NEW: Final = "NEW_SESSION"
_CLOSE: Final = "CLOSE"
#: The first byte of a value's file says what the rest is.
_JSON: Final = b"j"
_BYTES: Final = b"b"
_ARRAY: Final = b"a"


class Session:
    """The values of one session. A key is made of letters, digits, `_`, `-` and `.`; "/" is written as "-".

    Args:
        most_bytes: of all sessions in `session_root`; None: as many as fit.

    Attributes:
        session_id: its id, a UUID.
        files_path: its directory, as text.
    """

    def __init__(self, session_id: str, session_root: str | Path, most_bytes: int | None = None) -> None:
        self.session_id = session_id
        self.files_path = str(Path(session_root, checked(session_id)))
        self._most_bytes = most_bytes

    def put(self, key: str, value: Any) -> None:
        """Keep a value: bytes, a numpy array, or what JSON has.

        Raises:
            ValueError: the key is no valid name, or a number is infinite or NaN.
            TypeError: the value is none of these.
            OverloadedError: the sessions have as many bytes as they may.
            StorageError: the disk has no room.
        """
        if isinstance(value, bytes | bytearray | memoryview):
            data = _BYTES + bytes(value)
        elif hasattr(value, "__array_interface__"):
            data = _ARRAY + _npy(value)
        else:
            data = _JSON + encode_finite_json(value)
        path = self._path(key)
        self._check_room(len(data))
        written = path.with_name(f"{path.name}~{uuid.uuid4().hex}")
        try:
            written.write_bytes(data)
            written.replace(path)  # at once: another worker reads the one value or the other
        except OSError as exc:
            written.unlink(missing_ok=True)
            if lacks_room(exc):
                raise StorageError.of(exc) from exc
            raise

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
            FileNotFoundError: the session has no such array, and `create` is false.
            OverloadedError: the sessions have as many bytes as they may.
        """
        import numpy as np

        path = self._path(key)
        if create:
            self._check_room(math.prod(np.atleast_1d(shape).tolist()) * np.dtype(dtype).itemsize)
        return np.memmap(path, dtype=dtype, mode="w+" if create else "r+", shape=shape)

    def remove(self) -> bool:
        """Delete the session; whether there was one."""
        existed = Path(self.files_path).is_dir()
        shutil.rmtree(self.files_path, ignore_errors=True)
        return existed

    def _check_room(self, more: int) -> None:
        """Check that there is room for as many bytes more; a value that is replaced counts until it is.

        Raises:
            OverloadedError: there is none.
        """
        root = Path(self.files_path).parent
        owner = self.get(_OWNER, "")
        if self._most_bytes is None or _bytes_fit(root, owner, more, self._most_bytes):
            return
        _remove_expired(root)
        if not _bytes_fit(root, owner, more, self._most_bytes):
            raise OverloadedError(
                f"there is no room for {more} bytes in a session: all have {bytes_of(root)} of {self._most_bytes} "
                f"bytes (option.max_sessions_bytes{rule(owner)}); try again when others are closed"
            )

    def _path(self, key: str) -> Path:
        name = key.replace("/", "-")
        if not _KEY.fullmatch(name):
            raise ValueError(f"a session has no key {key!r}: expected letters, digits, '_', '-' and '.'")
        return Path(self.files_path, name)


class SessionManager:
    """The sessions of a model.

    Properties: `sessions_path`, a directory (default: in shared memory, else among temporary files),
    `sessions_expiration`, in seconds (default 1200), `max_sessions` (default 1000), and `max_sessions_bytes`, of all of
    them together (default 1 GiB). Expired sessions are deleted when a new one is made, and when there is no room.

    Raises:
        ValueError: `sessions_s3url` is set: sessions are not copied to S3; or another user owns the directory; or a
            setting of numbers is no number.
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        if properties.get("sessions_s3url"):
            raise ValueError("option.sessions_s3url: sessions are kept in option.sessions_path only")
        self.expiration = int(properties.get("sessions_expiration") or DEFAULT_EXPIRATION_S)
        self.most = int(properties.get("max_sessions") or DEFAULT_MOST)
        self.most_bytes = int(properties.get("max_sessions_bytes") or DEFAULT_MOST_BYTES)
        shared = Path("/dev/shm")
        default = (shared if shared.is_dir() else Path(tempfile.gettempdir())) / "djl_sessions"
        self.sessions_path = str(properties.get("sessions_path") or default)
        Path(self.sessions_path).mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.stat(self.sessions_path).st_uid != os.geteuid():  # who could read and write what sessions keep
            raise ValueError(f"option.sessions_path: {self.sessions_path} is another user's")

    def create_session(self, owner: str = "") -> Session:
        """A new session.

        Args:
            owner: the name of the API key that it belongs to; "": anyone's who knows its id.

        Raises:
            OverloadedError: sessions have reached their limit in number or in bytes.
            StorageError: the disk has no room.
        """
        root = Path(self.sessions_path)
        _remove_expired(root)
        held = sum(1 for _ in _sessions_in(root))
        # Whose the others are is read from their files, and only where it matters.
        if not (
            fits(owner, held, held, self.most)
            or (owner and fits(owner, sum(1 for _ in _owned(root, owner)), held, self.most))
        ):
            raise OverloadedError(
                f"{held} sessions are open, and option.max_sessions allows {self.most}{rule(owner)}; "
                "try again when others are closed"
            )
        session = self._session(str(uuid.uuid4()))
        Path(session.files_path).mkdir(mode=0o700)
        now_s = time.time()
        try:
            if owner:
                session.put(_OWNER, owner)
            session.put(_CREATED, now_s)
            session.put(_EXPIRES, now_s + self.expiration)
        except BaseException:
            session.remove()
            raise
        return session

    def get_session(self, session_id: str) -> Session | None:
        """The session with an id; None where it is unknown, closed or expired.

        Raises:
            ValueError: this is no id of a session.
        """
        session = self._session(session_id)
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

    def respond(self, inputs: Input) -> Output | None:
        """The answer to a request that opens or closes a session; None for any other, whose session, if it has one, is
        open.

        `{"requestType": "NEW_SESSION"}` opens one: the header X-Amzn-SageMaker-Session-Id of the answer has its id, and
        when it expires. `{"requestType": "CLOSE"}` closes that of the request's header of the same name. A session
        belongs to the API key that opened it.

        Raises:
            PayloadError: the session is unknown, closed or expired, or the type of the request is unknown.
        """
        kind, session_id = _request_type(inputs), inputs.get_property(_SESSION_HEADER)
        if kind is None:
            if session_id is not None:
                self._open(session_id, inputs)
            return None
        if kind == _NEW:
            session = self.create_session(inputs.key_name)
            expires = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(session.get(_EXPIRES)))
            opened = Output().add_property(_SESSION_HEADER, f"{session.session_id}; Expires={expires}")
            return opened.add_as_json({"result": f"Session {session.session_id} created"})
        if kind == _CLOSE:
            if session_id is None:
                raise PayloadError(f"{_REQUEST_TYPE}: {_CLOSE} needs a session's id in the header {_SESSION_HEADER}")
            closed = self._open(session_id, inputs).session_id
            self.close_session(closed)
            return Output().add_property(_CLOSED_HEADER, closed).add_as_json({"result": f"Session {closed} closed"})
        raise PayloadError(f"{_REQUEST_TYPE}: expected {_NEW} or {_CLOSE}, got {kind!r}", _REQUEST_TYPE)

    def _open(self, session_id: str, inputs: Input) -> Session:
        """The session, if who asks may see it: for everyone else, there is none."""
        try:
            session = self.get_session(session_id)
        except ValueError:
            session = None
        if session is None or not (inputs.is_manager or session.get(_OWNER, "") == inputs.key_name):
            hint = f" (send a body with {_REQUEST_TYPE})" if session_id == _NEW else ""
            raise PayloadError(f"{_SESSION_HEADER}: there is no session {session_id!r}, or it has expired{hint}")
        return session

    def _session(self, session_id: str) -> Session:
        return Session(session_id, self.sessions_path, self.most_bytes)


def names_session(inputs: Input) -> bool:
    """Whether a request is about a session, or in one."""
    return inputs.get_property(_SESSION_HEADER) is not None or _request_type(inputs) is not None


def _request_type(inputs: Input) -> Any:
    """The `requestType` of a JSON body; None without one."""
    data = inputs.get_as_bytes() or b""
    if len(data) > _LONGEST_REQUEST or _REQUEST_TYPE.encode() not in data:
        return None
    try:
        body = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None  # whoever reads the body says what is wrong with it
    return body.get(_REQUEST_TYPE) if isinstance(body, dict) else None


def checked(session_id: str) -> str:
    """The id itself.

    Raises:
        ValueError: it is not a UUID as `create_session` makes them, and could name a path.
    """
    if not isinstance(session_id, str) or not _ID.fullmatch(session_id):
        raise ValueError(f"invalid session_id: {session_id!r}")
    return session_id


def bytes_of(root: Path) -> int:
    """Bytes of all values of the sessions in a directory."""
    return sum(map(_size_of, _sessions_in(root)))


def _bytes_fit(root: Path, owner: str, more: int, most: int) -> bool:
    """Whether there is room for as many bytes more of an owner's. Whose the others are is asked where it matters."""
    held = bytes_of(root)
    return fits(owner, held, held, most, more) or fits(owner, sum(map(_size_of, _owned(root, owner))), held, most, more)


def _owned(root: Path, owner: str) -> Iterator[Path]:
    return (path for path in _sessions_in(root) if _owner_of(path) == owner)


def _owner_of(path: Path) -> Any:
    return Session(path.name, path.parent).get(_OWNER, "")


def _size_of(path: Path) -> int:
    with suppress(FileNotFoundError):  # it has been closed, or a value has been replaced
        return sum(entry.stat().st_size for entry in os.scandir(path))
    return 0


def _sessions_in(root: Path) -> Iterator[Path]:
    return (path for path in root.iterdir() if _ID.fullmatch(path.name))


def _remove_expired(root: Path) -> None:
    for path in _sessions_in(root):
        session = Session(path.name, root)
        expires_s = session.get(_EXPIRES)
        if expires_s is None:
            with suppress(FileNotFoundError):  # it has been closed
                expires_s = path.stat().st_mtime + _BEGUN_S
        if expires_s is not None and expires_s <= time.time():
            session.remove()


def _npy(array: Any) -> bytes:
    import io

    import numpy as np

    out = io.BytesIO()
    np.save(out, array, allow_pickle=False)
    return out.getvalue()
