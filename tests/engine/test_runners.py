"""What is opened for a model is closed again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from djl_python.engine import runners
from djl_python.engine.native.library import library
from djl_python.engine.native.recipe_parts import NotUnderstoodError
from djl_python.types import SamplingParams
from tests.checkpoints import build_checkpoint
from tests.engine.test_paged_batch import open_batch, run_to_end
from tests.kernels import kernels_or_skip
from tests.threads import come_down_to, threads


def refuse(*_: Any) -> None:
    raise NotUnderstoodError("a model of another kind")


@pytest.mark.parametrize(
    ("architecture", "how", "settings"),
    [
        ("llama", "native kernels", {}),
        ("qwen3_5", "native kernels", {}),
        ("llama", "native products", {}),
        ("bloom", "transformers' own cache", {}),
        ("llama", "native kernels", {"speculative": "draft"}),
        ("llama", "native products", {"speculative": "draft"}),
    ],
)
def test_threads_end_with_the_batch_that_they_are_for(
    architecture: str, how: str, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels_or_skip(library)
    path = build_checkpoint(tmp_path, architecture)
    if how != "native kernels":
        monkeypatch.setattr(runners, "read_recipe", refuse)

    def open_and_close() -> None:
        batch = open_batch(path, threads=3, draft_model_path=str(path), **settings)
        assert how in batch.description
        batch.add(0, list(range(2, 30)), SamplingParams(max_new_tokens=4, ignore_eos=True))
        run_to_end(batch)
        during = threads()
        batch.close()
        assert come_down_to(during - 1)

    open_and_close()
    libraries = threads()  # they have their own from now on
    open_and_close()
    assert come_down_to(libraries)
