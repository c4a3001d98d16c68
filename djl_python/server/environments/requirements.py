"""The requirements of a model directory: its requirements.txt, and the packages that it brings.

Runs in the front end, in a thread: packages are read whole.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ...config import ModelConfig
from ...core.errors import ModelLoadError

FILE_NAME: Final = "requirements.txt"
FOLDER_NAME: Final = "requirements"
#: Options of a requirements file whose value is another such file.
_NESTED: Final = ("-r", "--requirement", "-c", "--constraint")
#: Those whose value may be a folder, of packages or of a package's source.
_FOLDERS: Final = ("-f", "--find-links", "-e", "--editable")
#: A requirement of one version.
_PIN: Final = re.compile(r"([\w.-]+)\s*(?:\[[^]]*\])?\s*===?\s*([\w.+!-]+)")


@dataclass(frozen=True)
class Requirements:
    """The packages to install for a model. `packages`: a folder with wheels and source archives; None: there is none.

    Relative paths in `file` are taken from its own folder, which is where pip runs.
    """

    file: Path
    packages: Path | None

    def digest(self) -> str:
        """Tells contents apart: of the file, of the files and packages that it names, and of `packages`.

        Raises:
            ModelLoadError: one of them can't be read.
        """
        digest = hashlib.sha256()
        try:
            for name, content in self._contents():
                digest.update(f"{len(name)} {name} {len(content)} ".encode() + content)
        except OSError as exc:
            raise ModelLoadError(f"{exc.filename}: {exc.strerror}") from exc
        return digest.hexdigest()

    def _contents(self) -> Iterator[tuple[str, bytes]]:
        """Names, relative to the model's directory, and contents, or the contents' digests."""
        yield from self._file(self.file, set())
        if self.packages is not None:
            yield from self._digests(self.packages)

    def _file(self, file: Path, seen: set[Path]) -> Iterator[tuple[str, bytes]]:
        """A requirements file, and what it names of the model's directory."""
        if file in seen:
            return
        seen.add(file)
        text = file.read_bytes()
        yield self._name(file), text
        for option, name in _named_paths(text.decode(errors="replace")):
            # pip takes nested files from the folder of the file that names them, packages from where it runs.
            nested = option in _NESTED
            path = (file.parent if nested else self.file.parent) / name.removeprefix("file://")
            with suppress(ValueError):  # a name that no path can have
                if nested and path.is_file():
                    yield from self._file(path.resolve(), seen)
                elif path.is_dir():  # perhaps installed as a link to where it is
                    yield str(path.resolve()), b""
                    yield from self._digests(path)
                elif path.is_file():
                    yield from self._digests(path)

    def _digests(self, path: Path) -> Iterator[tuple[str, bytes]]:
        """The names of the files at or below a path, and their digests."""
        files = sorted(below for below in path.rglob("*") if below.is_file()) if path.is_dir() else [path]
        for file in files:
            if "__pycache__" not in file.parts:
                with file.open("rb") as opened:
                    yield self._name(file), hashlib.file_digest(opened, "sha256").digest()

    def _name(self, file: Path) -> str:
        root = self.file.parent
        return str(file.relative_to(root) if file.is_relative_to(root) else file)


def requirements_of(config: ModelConfig) -> Requirements | None:
    """What a model's directory asks to have installed; None: nothing. As in DJL, the folder counts beside the file.

    Raises:
        ModelLoadError: the file can't be read.
    """
    file, packages = Path(config.path, FILE_NAME), Path(config.path, FOLDER_NAME)
    if not config.path or not file.is_file():
        return None
    try:
        lines = file.read_bytes().splitlines()
    except OSError as exc:
        raise ModelLoadError(f"{file}: {exc.strerror}") from exc
    if all(not line.strip() or line.lstrip().startswith(b"#") for line in lines):
        return None
    return Requirements(file, packages if packages.is_dir() else None)


def pins(requirements: Requirements) -> Iterator[tuple[int, str, str]]:
    """(line, package, version) of each `package==version` of the file itself, without markers."""
    for number, line in enumerate(requirements.file.read_text("utf-8", "replace").splitlines(), 1):
        if pin := _PIN.fullmatch(line.partition(" #")[0].strip()):
            yield number, re.sub(r"[-_.]+", "-", pin[1]).lower(), pin[2]


def _named_paths(text: str) -> Iterator[tuple[str, str]]:
    """(option, value) of the options that name files or folders, and ("", word) of other words that look like paths."""
    for line in text.replace("\\\n", " ").splitlines():
        try:
            words = shlex.split(line, comments=True)
        except ValueError:  # an apostrophe, in a marker or a comment: pip will say what is wrong, if anything is
            words = line.split()
        expected = ""
        for word in words:
            name, equals, value = word.partition("=")
            glued = next(
                (option for option in (*_NESTED, *_FOLDERS) if len(option) == 2 and word.startswith(option)), ""
            )
            if expected:
                yield expected, word
                expected = ""
            elif word in (*_NESTED, *_FOLDERS):
                expected = word
            elif equals and name in (*_NESTED, *_FOLDERS):
                yield name, value
            elif glued:
                yield glued, word.removeprefix(glued)
            elif "/" in word or word.startswith(".") or word.endswith((".whl", ".gz", ".zip", ".bz2")):
                yield "", word.partition("[")[0]
