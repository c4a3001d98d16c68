"""A runner that does not see what the model sees is found out at load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForImageTextToText

from djl_python.engine.batch.chunk import SequenceChunk
from djl_python.engine.opening.image_check import ImageCheck
from djl_python.engine.torch_backend.cached_runner import CachedModelRunner
from djl_python.handlers.images.processor import ImageProcessor
from djl_python.handlers.images.sources import ImageSources
from tests.vision_checkpoints import build_vision_checkpoint

CPU = torch.device("cpu")


def opened(path: Path, name: str) -> tuple[Any, ImageCheck]:
    processor = ImageProcessor(build_vision_checkpoint(path, name), ImageSources(hosts=(), max_images=1))
    model = AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32).eval()
    return model, ImageCheck(model, processor.example, 7, 1e-3)


class BlindRunner(CachedModelRunner):
    """Never shows the model an image."""

    def run(self, chunks: list[SequenceChunk]) -> Tensor:
        for chunk in chunks:
            chunk.sequence.images = None
        return super().run(chunks)


class ForgetfulRunner(CachedModelRunner):
    """Lets one sequence's positions be taken for another's."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.counter = None


class BrokenRunner(CachedModelRunner):
    """Asks a model for what it has not."""

    def run(self, chunks: list[SequenceChunk]) -> Tensor:
        raise AttributeError("'LlavaForConditionalGeneration' object has no attribute 'nothing_of_that_name'")


@pytest.mark.parametrize("name", ["llava", "qwen2_vl", "gemma3"])
def test_runners(name: str, tmp_path: Path) -> None:
    model, check = opened(tmp_path, name)
    assert check.agrees(lambda: CachedModelRunner(model, CPU), 16, whole=True)
    assert not check.agrees(lambda: BlindRunner(model, CPU), 16, whole=True)
    assert not check.agrees(lambda: BrokenRunner(model, CPU), 16, whole=True)
    assert check.agrees(lambda: ForgetfulRunner(model, CPU), 16, whole=True) == (name != "qwen2_vl")


def test_a_prompt_whose_image_is_cut_in_two(tmp_path: Path) -> None:
    model, check = opened(tmp_path, "gemma3")
    assert check.agrees(lambda: CachedModelRunner(model, CPU), 16, whole=False)
