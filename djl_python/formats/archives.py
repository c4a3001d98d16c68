"""Zip and tar files, unpacked as if their author meant harm: who may name a model's URL need not be who made it.

Runs in the front end and in the worker, in threads. Nothing is written outside of the directory: names that point there
are refused, and links are made when all files are written, so that no file is written through one. What is neither a
file, a directory nor a link (a device, a pipe) is refused. What is unpacked is counted while it is, as an archive's own
numbers may lie: a few kilobytes can hold petabytes of zeros.
"""

from __future__ import annotations

import functools
import gzip
import io
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Final, Protocol, cast

from ..core.errors import PayloadError

try:
    import bz2
    import lzma
except ImportError:  # a Python that was built without them
    bz2 = lzma = None  # type: ignore[assignment]

#: What the readers of archives raise where one is damaged, cut off, encrypted, or packed in a way they do not know.
_DAMAGED: Final = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) + (
    () if lzma is None else (lzma.LZMAError,)
)
_PIECE_BYTES: Final = 1 << 20
_MAX_NAME: Final = 1024  # characters: of a path in an archive, and of a link's target
_LINK: Final = "a link"


@dataclass(frozen=True)
class ArchiveLimits:
    """What an archive may hold.

    Attributes:
        unpacked_bytes: of all files together; the largest checkpoints that are published have about half a tebibyte.
        entries: files, directories and links; a checkpoint has some hundreds.
        ratio: unpacked bytes for each byte of the archive, of what is unpacked beyond `free_bytes`. Weights can be
            packed to half of their size, text to a tenth; zeros, which are what bombs are made of, to a thousandth.
        free_bytes: how much may be unpacked whatever the ratio.
        left_bytes: room that stays on the disk, for others who write there.
    """

    unpacked_bytes: int = 1 << 40
    entries: int = 100_000
    ratio: int = 100
    free_bytes: int = 1 << 30
    left_bytes: int = 64 << 20


LIMITS: Final = ArchiveLimits()


def unpack(archive: Path, into: Path, limits: ArchiveLimits = LIMITS) -> None:
    """Unpack a zip or tar file into a directory, which exists and is empty. After an error, some of it may be there.

    Raises:
        PayloadError: it is neither, damaged, hostile, or larger than the limits or the disk allow. The message is for
            people, and does not name the archive.
    """
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped:
                _write(_zip_entries(zipped), archive, into, limits)
        else:
            with _decompressed(archive) as stream, _tar_file(stream) as tar:
                _write(_tar_entries(tar), archive, into, limits)
                while stream.read(_PIECE_BYTES):
                    pass  # to the end, where gzip has its checksum
    except (*_DAMAGED, OSError) as exc:
        raise PayloadError(f"can't be unpacked: {_one_line(exc)}") from exc


def room_for_bytes(directory: Path, left_bytes: int = LIMITS.left_bytes) -> int:
    """How many bytes may be written to a directory's disk, of which `left_bytes` stay free."""
    return max(0, shutil.disk_usage(directory).free - left_bytes)


def inside(root: Path, relative: str) -> Path:
    """`root / relative`, for a path of an archive or of an object's key.

    Raises:
        PayloadError: it does not lie below root, or is longer than a path should be.
    """
    path = PurePosixPath(relative.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts:
        raise PayloadError(f"entry {relative!r} points outside of the model")
    if len(relative) > _MAX_NAME or "\0" in relative:
        raise PayloadError(f"entry {relative[:80]!r}...: expected a path of at most {_MAX_NAME} characters")
    return root / path


class _Entry(Protocol):
    """One thing in an archive. `kind`: "a file", "a directory", "a link", or what else it is, in words."""

    name: str
    kind: str
    executable: bool
    size: int  # as the archive says, of a file

    def target(self) -> str:
        """Where a link points; relative to the link, or to the archive's root where `hard`."""
        ...

    @property
    def hard(self) -> bool:
        """Whether it is a link to a file in the archive, and no symbolic one."""
        ...

    def open(self) -> IO[bytes]:
        """A file's content."""
        ...


class _ZipEntry:
    hard = False

    def __init__(self, zipped: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
        mode = info.external_attr >> 16  # 0 where the archive was not made on a Unix
        self.name, self.size = info.filename, info.file_size
        self.kind = "a directory" if info.is_dir() else _kind_of(mode) if stat.S_IFMT(mode) else "a file"
        self.executable = bool(mode & stat.S_IXUSR)
        self._zipped, self._info = zipped, info

    def target(self) -> str:
        if self._info.file_size > _MAX_NAME:
            raise PayloadError(f"entry {self.name!r}: expected a link of at most {_MAX_NAME} characters")
        return self._zipped.read(self._info).decode(errors="surrogateescape")

    def open(self) -> IO[bytes]:
        return self._zipped.open(self._info)


class _TarEntry:
    def __init__(self, tar: tarfile.TarFile, info: tarfile.TarInfo) -> None:
        self.name, self.size = info.name, info.size
        self.hard = info.islnk()
        if info.isreg():
            self.kind = "a file"
        elif info.isdir():
            self.kind = "a directory"
        else:
            self.kind = _LINK if info.issym() or self.hard else "a pipe" if info.isfifo() else "a device"
        self.executable = bool(info.mode & stat.S_IXUSR)
        self._tar, self._info = tar, info

    def target(self) -> str:
        return self._info.linkname

    def open(self) -> IO[bytes]:
        opened = self._tar.extractfile(self._info)
        assert opened is not None  # as it is a file
        return opened


class _ShortReads(io.RawIOBase):
    """A stream of which nobody reads much at once: tarfile would read a header of any length into memory."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__()
        self._stream = stream

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _PIECE_BYTES:
            raise PayloadError(f"a header of {size} bytes; expected at most {_PIECE_BYTES}")
        return self._stream.read(size)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()


def _tar_file(stream: IO[bytes]) -> tarfile.TarFile:
    try:
        return tarfile.open(fileobj=_ShortReads(stream), mode="r:")
    except tarfile.ReadError:
        raise PayloadError("neither a zip nor a tar archive") from None


def _decompressed(archive: Path) -> IO[bytes]:
    """The bytes of a tar archive, which may be packed by gzip, bzip2 or xz."""
    with archive.open("rb") as file:
        magic = file.read(6)
    if magic.startswith(b"\x1f\x8b"):
        return cast("IO[bytes]", gzip.open(archive))
    if magic.startswith(b"BZh"):
        return bz2.open(archive)
    return lzma.open(archive) if magic.startswith(b"\xfd7zXZ") else archive.open("rb")


def _zip_entries(zipped: zipfile.ZipFile) -> Iterator[_Entry]:
    return (_ZipEntry(zipped, info) for info in zipped.infolist())


def _tar_entries(tar: tarfile.TarFile) -> Iterator[_Entry]:
    return (_TarEntry(tar, info) for info in tar)


def _write(entries: Iterator[_Entry], archive: Path, into: Path, limits: ArchiveLimits) -> None:
    """Write what is in an archive: directories and files as they come, then the links between them."""
    packed = archive.stat().st_size
    most = min(limits.unpacked_bytes, max(limits.free_bytes, limits.ratio * packed))
    room = room_for_bytes(into, limits.left_bytes)
    links: list[tuple[Path, _Entry]] = []
    written = 0
    for number, entry in enumerate(entries, start=1):
        if number > limits.entries:
            raise PayloadError(f"expected at most {limits.entries} entries")
        path = inside(into, entry.name)
        if entry.kind == "a directory":
            path.mkdir(parents=True, exist_ok=True)
        elif entry.kind == "a file":
            path.parent.mkdir(parents=True, exist_ok=True)
            mode = 0o777 if entry.executable else 0o666
            with entry.open() as source, open(path, "wb", opener=functools.partial(os.open, mode=mode)) as file:
                while data := source.read(_PIECE_BYTES):
                    written += len(data)
                    if written > most:
                        raise PayloadError(
                            f"more than {most} bytes come out of its {packed}: expected at most "
                            f"{limits.unpacked_bytes}, and beyond {limits.free_bytes} at most {limits.ratio} for each"
                        )
                    if written > room:
                        raise PayloadError(f"more than {room} bytes come out of it, and the disk has no room for more")
                    file.write(data)
        elif entry.kind == _LINK:
            links.append((path, entry))
        else:
            raise PayloadError(f"entry {entry.name!r} is {entry.kind}; expected files, directories and links")
    for path, entry in links:
        _link(path, entry, into)
    for path, entry in links:
        _check_link(path, entry, into)


def _link(path: Path, entry: _Entry, root: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.parent.resolve().is_relative_to(root.resolve()):  # through a link that was made before
        raise PayloadError(f"entry {entry.name!r} points outside of the model")
    target = entry.target()
    if len(target) > _MAX_NAME or PurePosixPath(target).is_absolute():
        raise _outside(entry.name)
    if entry.hard:
        original = inside(root, target)
        if original.is_symlink() or not original.is_file():
            raise PayloadError(f"entry {entry.name!r} is a link to {target!r}, which is no file before it")
        os.link(original, path)
    else:
        path.symlink_to(target)


def _check_link(path: Path, entry: _Entry, root: Path) -> None:
    """Refuse a link that leads out of the directory, now that those are made which it may lead through."""
    try:
        end = path.resolve(strict=True)
    except (OSError, RuntimeError) as exc:  # Python 3.13 has an OSError for a loop, earlier ones the other
        raise PayloadError(f"entry {entry.name!r} is a link that leads nowhere") from exc
    if not end.is_relative_to(root.resolve()):
        raise _outside(entry.name)


def _outside(name: str) -> PayloadError:
    return PayloadError(f"entry {name!r} is a link that points outside of the model")


def _kind_of(mode: int) -> str:
    """What a Unix mode says that something is."""
    if stat.S_ISREG(mode):
        return "a file"
    if stat.S_ISLNK(mode):
        return _LINK
    return "a directory" if stat.S_ISDIR(mode) else "a device"


def _one_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
