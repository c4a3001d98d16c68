"""The real checkpoint, or a skip where it has not been fetched; its tokenizer and texts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from djl_python.engine.builtin.paged_batch import PagedRollingBatch
from djl_python.engine.native.library import library
from djl_python.engine.settings import BuiltInSettings
from djl_python.text.tokens.tokenizer import Tokenizer
from djl_python.text.tokens.vocabulary import vocabulary_of
from tests.kernels import kernels_or_skip
from tests.real.fetch import checkpoint
from tests.real.texts import windows


@pytest.fixture(scope="session")
def smol() -> Path:
    path = checkpoint()
    if not path.is_dir():
        pytest.skip("SmolLM2 has not been fetched: `make test` and `python -m tests.real.fetch` do, and say why not")
    return path


@pytest.fixture(scope="session")
def tokenizer(smol: Path) -> Any:
    return AutoTokenizer.from_pretrained(smol)


@pytest.fixture(scope="session")
def texts(tokenizer: Any) -> list[list[int]]:
    return windows(tokenizer)


@contextmanager
def opened(path: Path, **settings: Any) -> Iterator[PagedRollingBatch]:
    """A batch of the checkpoint on the native kernels, as `auto` chooses them. Skips where there are none.

    On one thread: where as many tests run as there are processors, torch is twice as slow on two.
    """
    kernels_or_skip(library)
    defaults: dict[str, Any] = {"max_batch_size": 16, "max_model_len": 1024, "kv_blocks": 84, "threads": 1}
    batch = PagedRollingBatch(
        BuiltInSettings(model_path=str(path), **{**defaults, **settings}), lambda what, done, total: None
    )
    batch.set_vocabulary(vocabulary_of(Tokenizer.load(path)))
    try:
        yield batch
    finally:
        batch.close()
