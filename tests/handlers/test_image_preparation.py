"""Chats with images on their way to an engine that takes them, and to one that does not."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from djl_python.core.errors import ContextLengthError, PayloadError
from djl_python.core.types import Chat, GenerateRequest, Images, ImageSource, SamplingParams
from tests.handlers.harness import LIMITS, Served
from tests.vision_checkpoints import build_vision_checkpoint, data_url, picture

FIELD = "messages[0].content[0].image_url.url"


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llava")
    build_vision_checkpoint(path, "llava")
    return path


async def serve(path: Path, *, takes_images: bool = True) -> Served:
    return await Served(path, msgspec.structs.replace(LIMITS, takes_images=takes_images)).load()


def seeing(text: str = "?", **rest: int) -> GenerateRequest:
    content = [{"type": "image"}, {"type": "text", "text": text}]
    chat = Chat(messages=({"role": "user", "content": content},), images=(ImageSource(data_url(picture(1)), FIELD),))
    return GenerateRequest(prompt=chat, sampling=SamplingParams(max_new_tokens=2), **rest)  # type: ignore[arg-type]


async def test_the_engine_is_told_what_is_to_be_seen(llava: Path) -> None:
    served = await serve(llava)
    example = served.engine.callbacks["image_example"]
    assert example.images.inputs.keys() == {"pixel_values"}
    (*_, last) = await served.plain(seeing())
    (images,) = served.engine.images.values()
    assert isinstance(images, Images)
    assert images.inputs["pixel_values"].shape == (1, 3, 24, 24)
    assert last.finish is not None
    assert last.finish.prompt == "user: <image>?\nassistant:"
    assert last.finish.prompt_tokens == len(served.engine.prompts[1]) == len("user: ?\nassistant:") + 16
    await served.handler.close()


async def test_an_engine_that_takes_no_images(llava: Path) -> None:
    served = await serve(llava, takes_images=False)
    with pytest.raises(PayloadError, match=r"the engine that runs this model \(.*\) takes no images") as caught:
        await served.plain(seeing())
    assert caught.value.field == FIELD
    await served.handler.close()


async def test_limits(llava: Path) -> None:
    served = await serve(llava)
    with pytest.raises(ContextLengthError, match=r"^messages: 73 tokens"):
        await served.plain(seeing("x" * 40))
    with pytest.raises(ContextLengthError, match=r"^messages: at least 99[0-9]{3} tokens"):
        await served.plain(seeing("many " * 100_000))
    with pytest.raises(
        PayloadError, match=r": a prompt with images can't be cut to 33 tokens, and this one has 34"
    ) as caught:
        await served.plain(seeing("?", truncate=33))
    assert caught.value.field == FIELD
    await served.plain(seeing("?", truncate=34))
    await served.handler.close()
