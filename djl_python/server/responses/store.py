"""The responses that a server keeps, in memory or on disk, and their limits.

Runs in the front end's event loop, and reads and writes in threads. With a `responses_directory` a response has a file,
`ID.json`: its head in the first line, then its input items, then the response. It is in memory too until it has been
written. When there are too many responses, or bytes of them, the least recently used go, of the key that has the most.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from ...batch.runner import finished
from ...config import ServerConfig
from ...core.access.api_key import ApiKey
from ...core.access.shares import fits, givers, rule
from ...core.errors import ConfigError, KeptNotFoundError, OverloadedError, TooLargeError
from ...dialects.shared.openai.responses import failed_with
from ...formats.json_framing import encode_json
from ..disk import locked, replace_file
from .kept import Kept, Made, Share

log = logging.getLogger(__name__)

#: How long after its end a response can be followed from its beginning.
EVENTS_KEPT_S: Final = 300.0
#: Times of responses that are not kept any more, which are remembered at least.
_LEAST_EXPIRING: Final = 64
_SUFFIX: Final = ".json"
_UNFINISHED: Final = ""
#: What an owner has who keeps no responses.
_NOTHING: Final = Share()


class _Head(msgspec.Struct, frozen=True):
    """The first line of a file. `items_size`: the bytes of the input items, which follow it."""

    id: str
    owner: str
    previous: str
    expires_s: float
    background: bool
    status: str
    items_size: int


class Store:
    """The responses of a server.

    Raises:
        ConfigError: the directory can't be used, or another server uses it.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._most = config.responses_max
        self._max_bytes = config.responses_max_bytes
        self._kept_s = config.responses_expiration_s
        self._kept: dict[str, Kept] = {}
        self._of_owner: dict[str, Share] = {}
        self._expiring: list[tuple[float, str]] = []  # a heap
        self._bytes = 0
        self._made = Made()
        self._directory = Path(config.responses_directory) if config.responses_directory else None
        self._writing = asyncio.Lock()
        self._writes: set[asyncio.Task[None]] = set()
        if self._directory is not None:
            self._open(self._directory)

    async def close(self) -> None:
        """Wait until everything has been written, and release the directory for another server."""
        while self._writes:
            await asyncio.wait(self._writes)
        if self._directory is not None:
            self._lock.close()

    # ------------------------------------------------------------------------------------ finding

    def find(self, response_id: str, key: ApiKey, field: str = "id") -> Kept:
        """A response.

        Args:
            field: what the request calls the id.

        Raises:
            KeptNotFoundError: there is none of this id that the key may see.
        """
        self._forget_expired()
        kept = self._kept.get(response_id)
        if kept is None or kept.status == _UNFINISHED or not key.sees(kept.owner):
            raise _not_found(response_id, field)
        self._of_owner[kept.owner].used(kept)
        return kept

    def chain(self, response_id: str, key: ApiKey, field: str) -> list[Kept]:
        """A response and those that it goes on with, the oldest first.

        Raises:
            KeptNotFoundError: one of them is not kept, or the key may not see it.
        """
        responses = [self.find(response_id, key, field)]
        while previous := responses[-1].previous:
            responses.append(self.find(previous, key, field))
        return responses[::-1]

    async def content(self, kept: Kept, field: str = "id") -> tuple[bytes, bytes]:
        """The input items of a response, and the response.

        Raises:
            KeptNotFoundError: it has been deleted meanwhile.
            OSError: it can't be read.
        """
        if kept.content is not None:
            return kept.content
        try:
            return await asyncio.to_thread(_read, self._path(kept.id))
        except FileNotFoundError:
            raise _not_found(kept.id, field) from None

    # ------------------------------------------------------------------------------------ keeping

    def begin(
        self,
        response_id: str,
        key: ApiKey,
        items: bytes,
        *,
        previous: str = "",
        response: bytes = b"",
        status: str = _UNFINISHED,
    ) -> Kept:
        """Make room for a response whose request has come, and for its input items.

        Args:
            response: of one that is made in the background.

        Raises:
            TooLargeError: the items are more than all responses may have together.
            OverloadedError: those that are being made leave no room.
        """
        size = len(items) + len(response)
        if not fits(key.name, 0, 0, self._max_bytes, size):
            raise TooLargeError(
                f"the input has {len(items)} bytes, and all responses that are kept may have {self._max_bytes} "
                f"together (responses_max_bytes{rule(key.name)}): store=false keeps none of it"
            )
        self._forget_expired()
        if self._may_make(key.name, 1, size):
            self._make_room(key.name, size)
        if (
            not self._may_make(key.name, 1, size)
            or len(self._kept) >= self._most
            or self._bytes + size > self._max_bytes
        ):
            raise OverloadedError(
                f"the responses that are being made are as many as may be kept (responses_max={self._most}, "
                f"responses_max_bytes={self._max_bytes}{rule(key.name)}): store=false, or try again later"
            )
        kept = Kept(
            id=response_id,
            owner=key.name,
            previous=previous,
            expires_s=time.time() + self._kept_s,
            background=bool(status),
            status=status,
            content=(items, response),
            size=size,
        )
        self._add(kept)
        if status:
            self._write(kept)
        return kept

    def update(self, kept: Kept, response: bytes, status: str) -> None:
        """The response, or another state of it. Ignored once it has ended, and where it is not kept any more."""
        if kept.ended or self._kept.get(kept.id) is not kept or kept.content is None:
            return
        items, old = kept.content
        kept.content, kept.status = (items, response), status
        if kept.ended:
            self._count_made(kept, -1, -kept.size)
        self._resize(kept, len(response) - len(old))
        self._of_owner[kept.owner].used(kept)
        self._make_room(kept.owner, sparing=kept)
        self._write(kept)

    def grow(self, kept: Kept, size: int) -> bool:
        """Its events, or what there is of its answer, have become longer by so many bytes; returns whether there is
        room for them, as for all of one that is not kept any more.
        """
        if self._kept.get(kept.id) is not kept:
            return True
        self._resize(kept, size)
        self._make_room(kept.owner, sparing=kept)
        own = self._of_owner[kept.owner].made.bytes
        return self._bytes <= self._max_bytes and (
            kept.ended or size <= 0 or fits(kept.owner, own, self._made.bytes, self._max_bytes, 0)
        )

    def forget_events_later(self, kept: Kept) -> None:
        """A response has ended: those who follow it get its events for a while."""
        asyncio.get_running_loop().call_later(EVENTS_KEPT_S, self._forget_events, kept.id)

    def drop(self, kept: Kept) -> None:
        """Keep a response no longer."""
        if self._kept.get(kept.id) is kept:
            self._remove(kept)
            kept.events = None
            if kept.status != _UNFINISHED:
                self._write(kept)

    def full(self) -> OverloadedError:
        """The error of a response for whose events or answer `grow` finds no room."""
        return OverloadedError(f"there is no room for more of this response (responses_max_bytes={self._max_bytes})")

    # ------------------------------------------------------------------------------------ inside

    def _forget_events(self, response_id: str) -> None:
        if (kept := self._kept.get(response_id)) is not None and kept.events is not None:
            self.grow(kept, -kept.events.size)
            kept.events = None

    def _add(self, kept: Kept) -> None:
        self._kept[kept.id] = kept
        self._of_owner.setdefault(kept.owner, Share()).add(kept)
        self._bytes += kept.size
        if not kept.ended:
            self._count_made(kept, 1, kept.size)
        heapq.heappush(self._expiring, (kept.expires_s, kept.id))
        if len(self._expiring) > 2 * len(self._kept) + _LEAST_EXPIRING:  # most of which are not kept any more
            self._expiring = [(each.expires_s, each.id) for each in self._kept.values()]
            heapq.heapify(self._expiring)

    def _remove(self, kept: Kept) -> None:
        del self._kept[kept.id]
        self._bytes -= kept.size
        if not kept.ended:
            self._count_made(kept, -1, -kept.size)
        share = self._of_owner[kept.owner]
        share.remove(kept)
        if not share.kept:
            del self._of_owner[kept.owner]

    def _resize(self, kept: Kept, more: int) -> None:
        kept.size += more
        self._bytes += more
        self._of_owner[kept.owner].bytes += more
        if not kept.ended:
            self._count_made(kept, 0, more)

    def _count_made(self, kept: Kept, number: int, size: int) -> None:
        for made in (self._made, self._of_owner[kept.owner].made):
            made.count(number, size)

    def _may_make(self, owner: str, number: int, size: int) -> bool:
        """Whether an owner may have so many more that are being made, and bytes of them."""
        own, all_made = self._of_owner.get(owner, _NOTHING).made, self._made
        return fits(owner, own.number, all_made.number, self._most, number) and fits(
            owner, own.bytes, all_made.bytes, self._max_bytes, size
        )

    def _forget_expired(self) -> None:
        now = time.time()
        while self._expiring and self._expiring[0][0] <= now:
            kept = self._kept.get(heapq.heappop(self._expiring)[1])
            if kept is not None:
                self.drop(kept)

    def _make_room(self, owner: str, size: int = 0, sparing: Kept | None = None) -> None:
        """Drop the least recently used ones that have ended, as far as it needs, and never `sparing`.

        Those of the owner who has the most go first, and none of who has less than the owner of what needs the room:
        nobody's are dropped for another's flood.

        Args:
            size: of another response, for which there is to be room; 0: of none.
        """
        while True:
            many = len(self._kept) - self._most + (size > 0)
            much = self._bytes + size - self._max_bytes
            if many <= 0 and much <= 0:
                return

            def amount(name: str, by_number: bool = many > 0) -> int:
                share, more = self._of_owner.get(name, _NOTHING), name == owner and size > 0
                return len(share.kept) + more if by_number else share.bytes + more * size

            owners = givers({name: amount(name) for name in self._of_owner}, owner, amount(owner))
            oldest = next(filter(None, (self._of_owner[name].oldest(sparing) for name in owners)), None)
            if oldest is None:
                return
            self.drop(oldest)

    # ------------------------------------------------------------------------------------ on disk

    def _path(self, response_id: str) -> Path:
        assert self._directory is not None
        return self._directory / f"{response_id}{_SUFFIX}"

    def _write(self, kept: Kept) -> None:
        """Have the disk follow the table."""
        if self._directory is not None:
            task = asyncio.get_running_loop().create_task(self._follow(kept))
            self._writes.add(task)
            task.add_done_callback(self._writes.discard)

    async def _follow(self, kept: Kept) -> None:
        async with self._writing:  # in order, and each writes the newest state
            try:
                if self._kept.get(kept.id) is not kept:
                    await finished(asyncio.to_thread(self._path(kept.id).unlink, missing_ok=True))
                elif (content := kept.content) is not None:
                    await finished(asyncio.to_thread(replace_file, self._path(kept.id), _file(kept, content)))
                    if kept.ended and kept.content is content:
                        kept.content = None
            except OSError as exc:
                # It stays in memory, and is found as before until the server ends.
                log.error("response %s is not written to responses_directory: %s", kept.id, exc)

    def _open(self, directory: Path) -> None:
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = locked(directory / "lock")
            try:
                self._take_over(directory)
            except BaseException:
                self._lock.close()
                raise
        except BlockingIOError:
            raise ConfigError(f"responses_directory={directory}: another server uses this directory") from None
        except OSError as exc:
            raise ConfigError(f"responses_directory={directory}: {exc}") from exc

    def _take_over(self, directory: Path) -> None:
        """Take over what an earlier server has kept, as far as there is room."""
        for path in directory.glob("*.tmp"):
            path.unlink()
        for kept in sorted(_heads(directory), key=lambda kept: kept.expires_s):
            if not kept.ended:
                _give_up(kept, self._path(kept.id))
            self._add(kept)
        now = time.time()
        for kept in list(self._kept.values()):
            if kept.expires_s <= now or len(self._kept) > self._most or self._bytes > self._max_bytes:
                self._remove(kept)
                self._path(kept.id).unlink(missing_ok=True)


def _not_found(response_id: str, field: str) -> KeptNotFoundError:
    what = "Response" if field == "id" else "Previous response"
    return KeptNotFoundError(f"{what} with id '{response_id[:200]}' not found.", field)


def _file(kept: Kept, content: tuple[bytes, bytes]) -> bytes:
    items, response = content
    head = _Head(kept.id, kept.owner, kept.previous, kept.expires_s, kept.background, kept.status, len(items))
    return b"%b\n%b%b" % (encode_json(head), items, response)


def _read(path: Path) -> tuple[bytes, bytes]:
    """The input items and the response of a file."""
    line, _, data = path.read_bytes().partition(b"\n")
    size = msgspec.json.decode(line, type=_Head).items_size
    return data[:size], data[size:]


def _heads(directory: Path) -> Iterator[Kept]:
    for path in directory.glob(f"*{_SUFFIX}"):
        with path.open("rb") as file:
            line = file.readline()
        try:
            head = msgspec.json.decode(line, type=_Head)
        except msgspec.MsgspecError as exc:
            raise ConfigError(f"responses_directory: {path} can't be read: {exc}") from exc
        size = path.stat().st_size - len(line)
        yield Kept(head.id, head.owner, head.previous, head.expires_s, head.background, head.status, None, size)


def _give_up(kept: Kept, path: Path) -> None:
    """A response that an earlier server has not finished has failed."""
    items, response = _read(path)
    response = failed_with(response, 500, b"")
    kept.status = "failed"
    kept.size = len(items) + len(response)
    replace_file(path, _file(kept, (items, response)))
