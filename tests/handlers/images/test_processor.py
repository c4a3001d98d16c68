"""Chats with images become ids with placeholders and arrays; what is not to be done is said at load."""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL.Image import Image

from djl_python.config import Options
from djl_python.core.errors import ModelLoadError, PayloadError
from djl_python.core.types import Array, ImagePrompt, ImageSource
from djl_python.handlers.images.processor import ImageProcessor
from tests.checkpoints import build_checkpoint, since
from tests.vision_checkpoints import build_vision_checkpoint, data_url, picture


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llava")
    build_vision_checkpoint(path, "llava")
    return path


@pytest.fixture(scope="module")
def processor(llava: Path) -> ImageProcessor:
    loaded = ImageProcessor.load(llava, Options())
    assert loaded is not None
    return loaded


async def prepared(processor: ImageProcessor, text: str, *images: Image) -> ImagePrompt:
    sources = [ImageSource(data_url(image), f"image {i}") for i, image in enumerate(images)]
    return ImagePrompt(*await processor.prepare(text, sources))


def numbers(array: Array) -> np.ndarray:
    return np.frombuffer(array.data, array.dtype).reshape(array.shape)


async def test_a_prompt_is_what_the_checkpoints_processor_makes(processor: ImageProcessor, llava: Path) -> None:
    from transformers import AutoProcessor

    text, images = "a <image> b <image>", [picture(1), picture(2)]
    expected = AutoProcessor.from_pretrained(llava)(text=text, images=images, return_tensors="np")
    prompt = await prepared(processor, text, *images)
    assert prompt.ids == expected["input_ids"][0].tolist()
    assert prompt.images.inputs.keys() == {"pixel_values"}
    assert np.array_equal(numbers(prompt.images.inputs["pixel_values"]), expected["pixel_values"])


@since("5.16")  # older processors do not tell where each of several images begins: one mark stands for all
@pytest.mark.parametrize("name", ["llava", "idefics3", "qwen2_vl", "gemma3"])
async def test_each_image_is_marked_where_it_begins(name: str, tmp_path: Path) -> None:
    """Idefics3 writes an image in several runs of placeholders, LLaVA two images in one."""
    from djl_python.handlers.images.sources import ImageSources

    made = build_vision_checkpoint(tmp_path, name)
    processor = ImageProcessor(made, ImageSources(hosts=(), max_images=2))
    token = made.image_token
    alone = await prepared(processor, f"a{token}", picture(1))
    both = await prepared(processor, f"a{token}{token}b", picture(1), picture(2))
    placeholders = set(getattr(made, "image_token_ids", None) or [made.image_token_id])
    ((first, digest),) = alone.images.marks
    assert both.images.marks[0] == (first, digest)
    assert both.images.marks[1][1] != digest
    places = [i for i, token_id in enumerate(both.ids) if token_id in placeholders]
    of_one = sum(token_id in placeholders for token_id in alone.ids)
    assert [position for position, _ in both.images.marks] == [places[0], places[of_one]]
    assert both.images.end == places[-1] + 1
    assert alone.images.end == [i for i, token_id in enumerate(alone.ids) if token_id in placeholders][-1] + 1


async def test_texts_that_name_the_placeholder(processor: ImageProcessor, tmp_path: Path) -> None:
    with pytest.raises(PayloadError, match="writes <image> 2 times for 1 images") as caught:
        await prepared(processor, "<image> and <image>", picture(1))
    assert caught.value.field == "messages"
    build_vision_checkpoint(tmp_path, "gemma3")
    soft = ImageProcessor.load(tmp_path, Options())
    assert soft is not None
    with pytest.raises(PayloadError, match="text must not have <image_soft_token>"):
        await prepared(soft, "<start_of_image> and <image_soft_token>", picture(1))
    await soft.close()


async def test_a_bad_image_names_its_field(processor: ImageProcessor) -> None:
    with pytest.raises(PayloadError, match=r"^there: not an image") as caught:
        await processor.prepare("<image>", [ImageSource("data:,x", "there")])
    assert caught.value.field == "there"


async def test_a_chat_waits_for_room_for_its_files(processor: ImageProcessor) -> None:
    remote = ImageSource("http://127.0.0.1:9/", "there")
    async with processor.sources.room([remote] * 16):
        waiting = asyncio.ensure_future(processor.prepare("<image>", [remote]))
        await asyncio.sleep(0.05)
        assert not waiting.done()
    with pytest.raises(PayloadError, match=r"^there: expected a data: URL"):
        await waiting


def test_the_example_has_an_image_and_text_after_it(processor: ImageProcessor) -> None:
    example = processor.example
    assert 0 < example.images.end < len(example.ids) - 4


def test_checkpoints_without_eyes(tmp_path: Path, llava: Path) -> None:
    assert ImageProcessor.load(build_checkpoint(tmp_path / "llama", "llama"), Options()) is None
    assert ImageProcessor.load(tmp_path / "nothing", Options()) is None
    blind = tmp_path / "blind"
    shutil.copytree(llava, blind)
    (blind / "processor_config.json").unlink()
    assert ImageProcessor.load(blind, Options()) is None


def test_a_broken_processor_or_missing_pillow_is_refused(
    tmp_path: Path, llava: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(llava, broken)
    (broken / "processor_config.json").write_text('{"processor_class": "LlavaProcessor", "image_processor": 7}')
    with pytest.raises(ModelLoadError, match="the processor can't be loaded by transformers"):
        ImageProcessor.load(broken, Options())
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "PIL", None)
        with pytest.raises(ModelLoadError, match=r"needs Pillow: pip install 'djl-serving\[images\]'"):
            ImageProcessor.load(llava, Options())
