"""A way to run a model that refuses it says why, and leaves it as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from djl_python.engine.checkpoints.draft_size import NO_DRAFT
from djl_python.engine.checkpoints.loading import LoadedModel, load_model
from djl_python.engine.native.api import exact_logits
from djl_python.engine.native.library import library
from djl_python.engine.native.opening.native_program import NativeProgram
from djl_python.engine.native.program.runner import NativeModelRunner
from djl_python.engine.opening.cached_on_torch import CachedOnTorch
from djl_python.engine.opening.paged_on_torch import PagedOnTorch
from djl_python.engine.opening.torch_model import prepare_for_torch
from djl_python.engine.runner.opened_model import OpenedModel
from djl_python.engine.runner.opening_request import OpeningRequest, Refusal
from djl_python.engine.runner.probe import Probe, ids_of_probe
from djl_python.engine.runner.reference import Reference
from djl_python.engine.settings import BuiltInSettings
from djl_python.engine.torch_backend.paged_runner import PagedModelRunner
from tests.checkpoints import build_checkpoint
from tests.kernels import kernels_or_skip


def requested(path: Path, architecture: str = "llama", **settings: Any) -> OpeningRequest:
    wanted = BuiltInSettings(
        model_path=str(build_checkpoint(path, architecture)),
        max_batch_size=2,
        kv_cache_memory_mb=16,
        threads=1,
        **settings,
    )
    loaded = load_model(wanted, lambda *_: None)
    probe = Probe.of(ids_of_probe(loaded, []), loaded.vocabulary)
    return OpeningRequest(wanted, loaded, 128, Reference.of(loaded, None, probe, exact_logits), NO_DRAFT)


def attention(loaded: LoadedModel) -> str:
    name: str = loaded.model.config.get_text_config(decoder=True)._attn_implementation
    return name


def zeros(self: Any, chunks: Any) -> torch.Tensor:
    return torch.zeros(sum(chunk.length for chunk in chunks), 320)


def check_refusal(
    open_as: Callable[[OpeningRequest], OpenedModel | Refusal], request: OpeningRequest, reason: str
) -> None:
    own = attention(request.loaded)
    refusal = open_as(request)
    assert isinstance(refusal, Refusal) and reason in refusal.reason
    assert attention(request.loaded) == own
    again = request.reference.again(request.loaded)
    assert torch.equal(again.logits, request.reference.logits)


@pytest.mark.parametrize(("block_size", "reason"), [(16, "their logits are not"), (4, "option.block_size=4 is not")])
def test_a_native_program(block_size: int, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels_or_skip(library)
    request = requested(tmp_path, block_size=block_size)
    run, proved = NativeModelRunner.run, []

    def once(self: Any, chunks: Any) -> torch.Tensor:
        """Right while it is proved."""
        proved.append(self)
        return run(self, chunks) if self is proved[0] else zeros(self, chunks)

    monkeypatch.setattr(NativeModelRunner, "run", once)
    check_refusal(NativeProgram(None).open, request, reason)
    monkeypatch.undo()
    opened = NativeProgram(None).open(requested(tmp_path))
    assert isinstance(opened, OpenedModel) and opened.info.runner == "native"
    opened.close()


@pytest.mark.parametrize(
    ("architecture", "reason"), [("llama", "its logits are not its own"), ("bloom", "can't be replaced")]
)
def test_paged_on_torch(architecture: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request, model = prepare_for_torch(requested(tmp_path, architecture, kernels="torch"), None)
    monkeypatch.setattr(PagedModelRunner, "run", zeros)
    check_refusal(PagedOnTorch(model).open, request, reason)
    opened = CachedOnTorch(model).open(request)
    assert isinstance(opened, OpenedModel) and opened.info.runner == "transformers-cache"
