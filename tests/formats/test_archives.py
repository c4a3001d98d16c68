"""Archives whose authors mean harm, made byte by byte: nothing of them gets out, and what is refused is said."""

from __future__ import annotations

import bz2
import gzip
import io
import os
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from djl_python.core.errors import PayloadError
from djl_python.formats.archives import ArchiveLimits, unpack

#: (name, type of tar's, target of a link or content of a file)
Member = tuple[str, bytes, str]
FILE, LINK, HARD, FOLDER = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE
SMALL = ArchiveLimits(unpacked_bytes=1 << 20, entries=20, ratio=10, free_bytes=1 << 16)


@pytest.fixture
def into(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "model").mkdir()
    return tmp_path / "model"


def tar_of(path: Path, *members: Member, mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, kind, content in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, content if kind in (LINK, HARD) else ""
            data = content.encode() if kind == FILE else b""
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def zip_of(path: Path, *members: Member) -> Path:
    modes = {FILE: stat.S_IFREG, LINK: stat.S_IFLNK, FOLDER: stat.S_IFDIR, tarfile.FIFOTYPE: stat.S_IFIFO}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, kind, content in members:
            info = zipfile.ZipInfo(name + "/" * (kind == FOLDER))
            info.external_attr, info.compress_type = (modes[kind] | 0o644) << 16, zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
    return path


KINDS = pytest.mark.parametrize("make", [tar_of, zip_of])


@KINDS
def test_files_directories_and_links_between_them(make: Callable[..., Path], tmp_path: Path, into: Path) -> None:
    unpack(
        make(
            tmp_path / "a",
            ("first", LINK, "blobs/x"),  # as a hub's cache has them
            ("empty", FOLDER, ""),
            ("blobs/x", FILE, "content"),
            ("deep/er/link", LINK, "../../blobs"),
        ),
        into,
    )
    assert (into / "first").read_text() == (into / "deep/er/link/x").read_text() == "content"
    assert (into / "first").is_symlink() and (into / "empty").is_dir()


def test_permissions_are_the_programs_own(tmp_path: Path, into: Path) -> None:
    """None of a strange owner, or that others may change."""
    with tarfile.open(tmp_path / "a", "w") as archive:
        for name, mode in (("run.sh", 0o6777), ("data", 0o000)):
            info = tarfile.TarInfo(name)
            info.mode, info.uid = mode, 12345
            archive.addfile(info)
    unpack(tmp_path / "a", into)
    umask = os.umask(0)
    os.umask(umask)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in into.iterdir()}
    assert modes == {"run.sh": 0o777 & ~umask, "data": 0o666 & ~umask}


@KINDS
@pytest.mark.parametrize("name", ["../outside/x", "/outside/x", "a/../../outside/x", "..\\outside\\x", "a" * 2000])
def test_names_that_lead_out(make: Callable[..., Path], name: str, tmp_path: Path, into: Path) -> None:
    with pytest.raises(PayloadError, match=r"entry .*(points outside of the model|at most 1024 characters)"):
        unpack(make(tmp_path / "a", ("ok", FILE, "1"), (name, FILE, "2")), into)
    assert not list((tmp_path / "outside").iterdir())


@KINDS
@pytest.mark.parametrize(
    "members",
    [
        [("l", LINK, "/outside"), ("l/x", FILE, "2")],
        [("l", LINK, "../outside"), ("l/x", FILE, "2")],  # the file makes a directory: the link has no place
        [("l", LINK, "../outside")],
        [("a/s", LINK, ".."), ("l", LINK, "a/s/../outside")],  # inside by its letters alone
        [("a/s", LINK, "../../outside"), ("a/s/l", LINK, "x")],
        [("b", LINK, "."), ("c", LINK, "b/b/b/../outside")],
        [("loop", LINK, "loop")],
        [("gone", LINK, "no/such")],
        [("long", LINK, "x" * 3000)],
    ],
)
def test_links_that_lead_out(make: Callable[..., Path], members: list[Member], tmp_path: Path, into: Path) -> None:
    with pytest.raises(PayloadError, match=r"link|can't be unpacked: .*File exists|outside"):
        unpack(make(tmp_path / "a", *members), into)
    assert not list((tmp_path / "outside").iterdir())


@pytest.mark.parametrize(
    "members",
    [
        [("h", HARD, "../outside/x")],
        [("h", HARD, "/etc/passwd")],
        [("s", LINK, "../outside"), ("h", HARD, "s")],
        [("h", HARD, "later"), ("x", FILE, "")],
    ],
)
def test_hard_links_to_what_is_not_in_the_archive(members: list[Member], tmp_path: Path, into: Path) -> None:
    with pytest.raises(PayloadError, match=r"entry 'h'|outside"):
        unpack(tar_of(tmp_path / "a", *members), into)
    unpack(tar_of(tmp_path / "b", ("x", FILE, "1"), ("h", HARD, "x")), Path(tmp_path, "model"))
    assert (into / "h").read_text() == "1"


@pytest.mark.parametrize("kind", [tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE])
def test_devices_and_pipes(kind: bytes, tmp_path: Path, into: Path) -> None:
    with pytest.raises(PayloadError, match=r"entry 'd' is a (device|pipe); expected files, directories and links"):
        unpack(tar_of(tmp_path / "a", ("d", kind, "")), into)
    with pytest.raises(PayloadError, match="entry 'd' is a device"):
        unpack(zip_of(tmp_path / "b", ("d", tarfile.FIFOTYPE, "")), into)
    assert not list(into.iterdir())


class TestBombs:
    @KINDS
    def test_zeros(self, make: Callable[..., Path], tmp_path: Path, into: Path) -> None:
        archive = make(tmp_path / "a", *((f"f{i}", FILE, "0" * 60_000) for i in range(3)))
        with pytest.raises(PayloadError, match=r"more than 65536 bytes come out of its \d+: .*at most 10 for each"):
            unpack(archive, into, SMALL)
        unpack(make(tmp_path / "b", ("f", FILE, "0" * 60_000)), into, SMALL)  # whatever the ratio

    def test_incompressible_files_are_bounded_too(self, tmp_path: Path, into: Path) -> None:
        with tarfile.open(tmp_path / "a", "w") as archive:
            info = tarfile.TarInfo("f")
            info.size = 2 << 20
            archive.addfile(info, io.BytesIO(os.urandom(info.size)))
        with pytest.raises(PayloadError, match="more than 1048576 bytes"):
            unpack(tmp_path / "a", into, SMALL)

    def test_a_size_that_is_a_lie(self, tmp_path: Path, into: Path) -> None:
        """The local header and the central one say ten bytes."""
        archive = zip_of(tmp_path / "a", ("f", FILE, "0" * 100_000))
        data = archive.read_bytes().replace((100_000).to_bytes(4, "little"), (10).to_bytes(4, "little"))
        archive.write_bytes(data)
        with pytest.raises(PayloadError):
            unpack(archive, into, SMALL)
        assert sum(path.stat().st_size for path in into.iterdir()) <= 10

    @KINDS
    def test_entries(self, make: Callable[..., Path], tmp_path: Path, into: Path) -> None:
        with pytest.raises(PayloadError, match="expected at most 20 entries"):
            unpack(make(tmp_path / "a", *((f"f{i}", FILE, "") for i in range(21))), into, SMALL)

    @pytest.mark.parametrize("packed", [gzip.compress, bz2.compress])
    def test_a_header_that_would_fill_the_memory(
        self, packed: Callable[[bytes], bytes], tmp_path: Path, into: Path
    ) -> None:
        info = tarfile.TarInfo("x")
        info.type, info.size = tarfile.GNUTYPE_LONGNAME, 50 << 20
        (tmp_path / "a").write_bytes(packed(info.tobuf(tarfile.GNU_FORMAT) + b"a" * (50 << 20)))
        with pytest.raises(PayloadError, match=r"a header of \d+ bytes; expected at most 1048576"):
            unpack(tmp_path / "a", into)

    def test_a_full_disk_is_left_some_room(self, tmp_path: Path, into: Path) -> None:
        with pytest.raises(PayloadError, match="more than 0 bytes come out of it, and the disk has no room for more"):
            unpack(zip_of(tmp_path / "a", ("f", FILE, "1")), into, ArchiveLimits(left_bytes=1 << 60))


@KINDS
def test_an_encrypted_or_damaged_archive(make: Callable[..., Path], tmp_path: Path, into: Path) -> None:
    archive = make(tmp_path / "a", ("f", FILE, "content" * 1000))
    archive.write_bytes(archive.read_bytes()[:-30])
    with pytest.raises(PayloadError, match=r"neither a zip nor a tar|can't be unpacked"):
        unpack(archive, into)
    encrypted = zip_of(tmp_path / "b", ("f", FILE, "content")).read_bytes()
    where = encrypted.index(b"PK\x01\x02") + 8
    (tmp_path / "b").write_bytes(encrypted[:6] + b"\x01" + encrypted[7:where] + b"\x01" + encrypted[where + 1 :])
    with pytest.raises(PayloadError, match=r"can't be unpacked: .*encrypted"):
        unpack(tmp_path / "b", into)
