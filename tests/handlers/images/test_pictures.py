"""Images for an engine that prepares them itself."""

from __future__ import annotations

import hashlib

import msgspec
import numpy as np
import pytest

from djl_python.config import Options
from djl_python.core.errors import PayloadError
from djl_python.core.sequence_request import Pictures, SequenceRequest
from djl_python.core.types import ImageSource
from djl_python.handlers.images.pictures import PictureReader
from djl_python.ipc.framing import FrameReader, encode_frame
from djl_python.ipc.protocol import AnyMessage, Expand
from tests.handlers.harness import ids
from tests.vision_checkpoints import data_url, picture, png

FIELD = "messages[0].content[0].image_url.url"


def source(seed: int) -> ImageSource:
    return ImageSource(data_url(picture(seed)), FIELD)


async def test_pixels_and_the_prompt_as_it_is_written() -> None:
    asked: list[Pictures] = []

    async def expand(pictures: Pictures) -> list[int]:
        asked.append(pictures)
        return [*pictures.written, 0, 0]

    reader = PictureReader(Options(), ids, expand)
    prompt, pictures = await reader.prepare("a<image>b<image>", [source(1), source(2)])
    assert prompt == [*ids("a<image>b<image>"), 0, 0]
    assert asked[0].written == tuple(ids("a<image>b<image>"))
    assert pictures == msgspec.structs.replace(asked[0], length=len(prompt))
    for seed, pixels, digest in zip((1, 2), pictures.pixels, pictures.digests, strict=True):
        assert pixels.shape == (30, 40, 3)
        read = np.frombuffer(pixels.data, np.uint8).reshape(pixels.shape)
        np.testing.assert_array_equal(read, np.asarray(picture(seed)))
        assert digest == hashlib.sha256(png(picture(seed))).hexdigest()
    await reader.close()


async def test_unreadable_images_reach_no_engine() -> None:
    async def expand(pictures: Pictures) -> list[int]:
        raise AssertionError

    reader = PictureReader(Options(max_images=1), ids, expand)
    with pytest.raises(PayloadError, match="expected at most 1 images, got 2") as caught:
        await reader.prepare("<image><image>", [source(1), source(2)])
    assert caught.value.field == FIELD
    with pytest.raises(PayloadError, match="not an image in one of the formats"):
        await reader.prepare("<image>", [ImageSource("data:image/png;base64,AAAA", FIELD)])
    await reader.close()


async def test_pictures_cross_processes() -> None:
    async def expand(pictures: Pictures) -> list[int]:
        return []

    reader = PictureReader(Options(), ids, expand)
    _, pictures = await reader.prepare("<image>", [source(3)])
    await reader.close()
    from djl_python.core.types import SamplingParams

    sent: list[AnyMessage] = [
        Expand(1, pictures),
        SequenceRequest([1, 2], SamplingParams(max_new_tokens=1), id=2, images=pictures),
    ]
    assert FrameReader().feed(encode_frame(sent)) == sent
