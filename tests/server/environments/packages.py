"""Packages for pip to install, made here: wheels, and a source archive whose build does what a test wants."""

from __future__ import annotations

import io
import os
import tarfile
import venv
import zipfile
from pathlib import Path

import msgspec

import djl_python
from djl_python.config import ModelConfig, ServerConfig, parse_model_spec
from djl_python.sources import load_model_config

#: A source archive's, which has its own backend: nothing has to be fetched to build it.
PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


def write_wheel(folder: Path, name: str, version: str, *requires: str, script: bool = False) -> Path:
    """A wheel of a module with a VERSION, and perhaps a command that prints it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    path.write_bytes(wheel(name, version, *requires, script=script))
    return path


def wheel(name: str, version: str, *requires: str, script: bool = False) -> bytes:
    """A wheel's bytes."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"VERSION = {version!r}\n\n\ndef show():\n    print(VERSION)\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + "".join(f"Requires-Dist: {one}\n" for one in requires),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if script:
        files[f"{info}/entry_points.txt"] = f"[console_scripts]\nshow-{name} = {name}:show\n"
    files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in files) + f"{info}/RECORD,,\n"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    return buffer.getvalue()


def write_sdist(folder: Path, name: str, before: str) -> Path:
    """A source archive, version 1, whose build first runs `before`, and then copies a wheel that lies beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    ready = write_wheel(folder / "built", name, "1")
    backend = (
        f"import os, shutil, sys, time\n\n\ndef build_wheel(to, *_):\n    {before}\n"
        f"    shutil.copy({str(ready)!r}, to)\n    return {ready.name!r}\n"
    )
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n"
    path = folder / f"{name}-1.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for file, text in {"pyproject.toml": PYPROJECT, "backend.py": backend, "PKG-INFO": metadata}.items():
            entry = tarfile.TarInfo(f"{name}-1/{file}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return path


def bare_interpreter(folder: Path, *packages: str) -> Path:
    """The interpreter of an environment with these of our packages (names of files and folders) and no other."""
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/*/site-packages")
    ours = Path(msgspec.__file__).parents[1]
    for name in packages:
        paths = [path for path in ours.iterdir() if path.name == name or path.name.startswith(f"{name}-")]
        assert paths, name
        for path in paths:
            (site / path.name).symlink_to(path)
    return folder / "bin" / "python"


#: What a bare interpreter needs to run a worker.
WORKERS = ("msgspec", "jsonlines", "attr", "attrs", "typing_extensions.py")


def model_of(directory: Path, requirements: str | None, links: Path, properties: str = "") -> ModelConfig:
    """A model with these requirements, whose pip finds packages in `links` alone, and whose cache is its neighbour."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "model.py").write_text("def handle(inputs):\n    return None\n")
    if requirements is not None:
        (directory / "requirements.txt").write_text(requirements)
    (directory / "serving.properties").write_text(f"option.env={pip_settings(links)}\n{properties}\n")
    return read(directory)


def read(directory: Path, **environ: str) -> ModelConfig:
    """A model's configuration; its cache is beside its directory."""
    cache = str(directory.parent / "cache")
    return load_model_config(parse_model_spec(f"m={directory}"), ServerConfig(), {"DJL_CACHE_DIR": cache, **environ})


def pip_settings(links: Path) -> str:
    """As `option.env`: pip's variables, so that it asks nobody."""
    return f"PIP_CONFIG_FILE={os.devnull},PIP_NO_INDEX=1,PIP_FIND_LINKS={links}"


def packages_of(prefix: Path) -> dict[str, int]:
    """What is in an interpreter's folders of packages and commands, and when it was written."""
    folders = [*prefix.glob("lib/*/site-packages"), prefix / "bin"]
    return {str(path): path.lstat().st_mtime_ns for folder in folders for path in folder.iterdir()}


OURS = Path(djl_python.__file__).parent
