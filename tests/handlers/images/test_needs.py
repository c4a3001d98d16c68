"""What a checkpoint's images need of packages, told from its files; held against what transformers' classes take."""

from __future__ import annotations

import importlib.util
import inspect
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as CHATTING
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

from djl_python.config import ModelConfig, Options
from djl_python.core.errors import ModelLoadError
from djl_python.handlers.checks import check
from djl_python.handlers.images.needs import image_fault, lacks_pillow
from tests.sketches import LLAMA, write_sketch

Without = Callable[[str], None]


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Without:
    """Have a package be missing."""

    def miss(package: str) -> None:
        find = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == package else find(name))

    return miss


def with_images(path: Path, processor: str) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({**LLAMA, "vision_config": {}}))
    (path / "preprocessor_config.json").write_text(json.dumps({"processor_class": processor}))
    return path


def test_a_processor_of_videos_needs_torchvision(tmp_path: Path, without: Without) -> None:
    without("torchvision")
    assert "a Qwen2VLProcessor prepares videos too" in image_fault(with_images(tmp_path, "Qwen2VLProcessor"))
    for kind in ("LlavaProcessor", "TheirOwnProcessor"):
        assert image_fault(with_images(tmp_path, kind)) == ""
    (tmp_path / "preprocessor_config.json").unlink()
    assert image_fault(tmp_path) == image_fault(tmp_path / "nowhere") == ""


def test_processors_that_need_torchvision_are_refused_without_it(tmp_path: Path, without: Without) -> None:
    without("torchvision")
    taking, told = set(), set()
    for kind in {PROCESSOR_MAPPING_NAMES[name] for name in CHATTING if name in PROCESSOR_MAPPING_NAMES}:
        own = getattr(transformers, kind).__dict__.get("__init__")
        if own is not None and "video_processor" in inspect.signature(own).parameters:
            taking.add(kind)
        if image_fault(with_images(tmp_path, kind)):
            told.add(kind)
    assert told == taking
    assert "Qwen3VLProcessor" in told


def test_images_need_pillow(tmp_path: Path, without: Without) -> None:
    assert lacks_pillow() == ""
    without("PIL")
    assert "they need Pillow: pip install" in lacks_pillow()
    assert "takes images, which needs Pillow: pip install" in image_fault(with_images(tmp_path, "LlavaProcessor"))


def test_a_model_is_refused_for_it_unless_its_requirements_may_bring_it(tmp_path: Path, without: Without) -> None:
    without("torchvision")
    path = write_sketch(tmp_path / "m", LLAMA)
    config = ModelConfig(name="m", path=str(path), option=Options())
    check(config)
    with_images(path, "Qwen2VLProcessor")
    with pytest.raises(ModelLoadError, match="needs torchvision, also for images alone: pip install torchvision"):
        check(config)
    (path / "requirements.txt").write_text("torchvision-of-tomorrow\n")
    check(config)
