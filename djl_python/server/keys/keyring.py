"""The keys that a server accepts, and the key of each request.

Runs in the front end's event loop. The file is looked at when a request comes, once a second at most: a removed key
stops working within a second, without a reload.
"""

from __future__ import annotations

import hmac
import logging
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from ...config import ServerConfig
from ...core.access.api_key import ApiKey, digest
from ...core.errors import ConfigError, UnauthorizedError
from .key_file import read_keys

log = logging.getLogger(__name__)

#: Headers that may have a key, and are passed on to nobody where keys are asked for.
CREDENTIALS: Final = ("authorization", "x-api-key", "api-key")
_BEARER: Final = "bearer "
#: How often the file is looked at, at most.
LOOK_EVERY_S: Final = 1.0


class Keyring:
    """The keys of a server.

    Args:
        path: the file of keys; None: there is none.
        given: keys beside those of the file.
        clock: seconds that only grow.
        on_change: called with all names after each change.

    Attributes:
        required: whether requests need a key.

    Raises:
        ConfigError: the file can't be read, or is not one of keys.
    """

    def __init__(
        self,
        path: Path | None = None,
        given: Sequence[ApiKey] = (),
        clock: Callable[[], float] = time.monotonic,
        on_change: Callable[[Collection[str]], None] = lambda names: None,
    ) -> None:
        self.required = path is not None or bool(given)
        self._path = path
        self._given = given
        self._clock = clock
        self._on_change = on_change
        self._keys: dict[str, ApiKey] = {}
        self._seen: object = None  # identifies the version of the file
        self._look_at_s = 0.0
        keys: Sequence[ApiKey] = ()
        if path is not None:
            self._seen = _signature(path)
            keys = read_keys(path)
        self._take(keys)

    @classmethod
    def of(cls, config: ServerConfig, on_change: Callable[[Collection[str]], None]) -> Keyring:
        """The keys that a configuration names; raises as the constructor."""
        return cls(Path(config.api_keys) if config.api_keys else None, config.given_keys, on_change=on_change)

    def key_of(self, headers: Mapping[str, str]) -> ApiKey:
        """The key of a request, from its headers.

        Raises:
            UnauthorizedError: it has no key, or none that is valid.
        """
        self._look()
        secret = _secret(headers)
        if not secret:
            raise UnauthorizedError(
                "You didn't provide an API key. It is expected in the header Authorization (Bearer KEY), x-api-key or "
                "api-key"
            )
        hashed = digest(secret)
        key = self._keys.get(hashed)
        # The lookup is by hash, of which a client can't choose a part: its timing reveals nothing.
        if key is None or not hmac.compare_digest(key.sha256, hashed):
            raise UnauthorizedError("Incorrect API key provided")
        if key.has_expired(time.time()):
            raise UnauthorizedError(f"The API key {key.name!r} has expired")
        return key

    def _look(self) -> None:
        """Read the file again if it has changed."""
        if self._path is None or (now_s := self._clock()) < self._look_at_s:
            return
        self._look_at_s = now_s + LOOK_EVERY_S
        try:
            signature = _signature(self._path)
            if signature == self._seen:
                return
            self._seen = signature  # also of a broken one, which is told once
            keys = read_keys(self._path)
        except ConfigError as exc:
            log.error("%s; the keys are those of before", exc.message)
            return
        self._take(keys)
        log.info("api_keys: %d keys", len(keys))

    def _take(self, keys: Sequence[ApiKey]) -> None:
        self._keys = {key.sha256: key for key in (*keys, *self._given)}
        self._on_change({key.name for key in self._keys.values()})


def _signature(path: Path) -> object:
    try:
        stat = os.stat(path)
    except OSError as exc:
        return exc.errno
    return stat.st_mtime_ns, stat.st_ino, stat.st_size


def _secret(headers: Mapping[str, str]) -> str:
    """The key that a request has; "" if it has none."""
    given = headers.get("authorization", "")
    if given[: len(_BEARER)].lower() == _BEARER:
        return given[len(_BEARER) :].strip()
    return (headers.get("x-api-key") or headers.get("api-key") or "").strip()
