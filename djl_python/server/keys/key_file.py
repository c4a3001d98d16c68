"""The file of `api_keys`: a key on each line, as JSON, with its hash instead of the key.

    {"name":"ci","sha256":"9f86d0...","scopes":["infer"],"created_at":"2026-11-27T10:00:00Z"}

Runs in the front end, which only reads it, and in `djl-serving keys`, which writes it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from ...core.access.api_key import ApiKey
from ...core.errors import ConfigError


def read_keys(path: Path) -> tuple[ApiKey, ...]:
    """The keys of a file. Empty lines are nothing.

    Raises:
        ConfigError: it can't be read, or a line is not a key.
    """
    read: dict[str, int] = {}
    keys = []
    for number, line in _lines(path):
        try:
            key = msgspec.json.decode(line, type=ApiKey)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
            raise ConfigError(f"api_keys: {path}:{number}: {exc}") from None
        if (other := read.setdefault(key.sha256, number)) != number:
            raise ConfigError(f"api_keys: {path}:{number}: sha256: line {other} has the same key")
        keys.append(key)
    return tuple(keys)


def add_key(path: Path, key: ApiKey) -> None:
    """Write a key behind the others; makes the file, which its owner alone can read, where there is none.

    Raises:
        ConfigError: what is there is not a file of keys, or it can't be written.
    """
    if path.exists():
        read_keys(path)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with open(descriptor, "a+b") as file:
            size = file.seek(0, os.SEEK_END)
            before = b"\n" if size and os.pread(descriptor, 1, size - 1) != b"\n" else b""
            file.write(before + msgspec.json.encode(key) + b"\n")  # one write: a server reads the whole line or none
    except OSError as exc:
        raise ConfigError(f"api_keys: {path}: {exc.strerror}") from exc


def remove_keys(path: Path, chosen: Callable[[ApiKey], bool]) -> tuple[ApiKey, ...]:
    """Remove the chosen keys' lines; returns these keys.

    Raises:
        ConfigError: it is not a file of keys, or it can't be written.
    """
    removed = tuple(key for key in read_keys(path) if chosen(key))
    gone = {key.sha256 for key in removed}
    kept = [line for _, line in _lines(path) if msgspec.json.decode(line, type=ApiKey).sha256 not in gone]
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        beside.touch(mode=0o600)
        beside.chmod(path.stat().st_mode & 0o777)
        beside.write_bytes(b"".join(line + b"\n" for line in kept))
        beside.replace(path)
    except OSError as exc:
        raise ConfigError(f"api_keys: {path}: {exc.strerror}") from exc
    finally:
        beside.unlink(missing_ok=True)
    return removed


def _lines(path: Path) -> list[tuple[int, bytes]]:
    """The lines that have something on them, with their numbers."""
    try:
        content = path.read_bytes()
    except OSError as exc:
        raise ConfigError(f"api_keys: {path}: {exc.strerror}") from exc
    return [(number, line) for number, line in enumerate(content.split(b"\n"), 1) if line.strip()]
