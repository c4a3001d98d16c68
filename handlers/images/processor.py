"""Prepares a chat with images by the checkpoint's own processor: ids with placeholders, and arrays for the model.

Runs in the worker, in a thread of its own: processors are slow and not made for several threads.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from djl_python.config import Options
from djl_python.core.errors import ModelLoadError, PayloadError
from djl_python.core.types import Array, ImagePrompt, Images, ImageSource
from djl_python.engine.checkpoints.directory import PROCESSOR_FILES

from .needs import INSTALL
from .sources import DecodedImage, ImageSources, decode, image_hosts

#: Outputs of processors that are not passed to the model: it gets the ids separately, and none of them is masked.
_NOT_INPUTS: Final = ("input_ids", "attention_mask", "text_replacement_offsets")
_EXAMPLE_SIZE: Final = (64, 48)
_EXAMPLE_TEXT: Final = " What is this?"


class ImageProcessor:
    """A transformers processor.

    Attributes:
        example: a prompt with an image and text after it, for the engine to check itself with.
        sources: where images come from; it bounds how many are fetched at once.

    Args:
        processor: with a tokenizer and an image processor.

    Raises:
        ModelLoadError: this kind of processor is not known here.
    """

    def __init__(self, processor: Any, sources: ImageSources) -> None:
        self._processor = processor
        self.sources = sources
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="images")
        # Before 5.15, transformers' `image_token` of Gemma 3 is the placeholder, not what a chat has for an image.
        tokens = [getattr(processor, name, None) for name in ("image_token", "boi_token")]
        ids = getattr(processor, "image_token_ids", None) or [getattr(processor, "image_token_id", None)]
        if not isinstance(tokens[0], str) or None in ids:
            raise ModelLoadError(f"{type(processor).__name__} doesn't tell which token stands for an image")
        self._placeholder_ids = [int(token_id) for token_id in ids]
        self._placeholders = [str(text) for text in processor.tokenizer.convert_ids_to_tokens(self._placeholder_ids)]
        self._token, self.example = self._accepted([token for token in tokens if isinstance(token, str)])

    @classmethod
    def load(cls, path: Path, option: Options) -> ImageProcessor | None:
        """The processor of the checkpoint in directory `path`; None if it takes no images. Slow.

        Raises:
            ModelLoadError: the checkpoint takes images, and its processor can't be loaded.
        """
        if not _has_eyes(path):
            return None
        try:
            import PIL  # noqa: F401 (transformers would only say that it has no image processor)
        except ImportError as exc:
            raise ModelLoadError(f"{path}: this model takes images, which needs Pillow: {INSTALL}") from exc
        from transformers import AutoProcessor

        try:
            processor = AutoProcessor.from_pretrained(str(path), trust_remote_code=option.trust_remote_code)
        except (OSError, ValueError, ImportError, LookupError, AttributeError, TypeError) as exc:
            raise ModelLoadError(
                f"{path}: the processor can't be loaded by transformers: {exc} "
                "(those that take videos too need torchvision)"
            ) from exc
        if not hasattr(processor, "image_processor") or not hasattr(processor, "tokenizer"):
            return None
        sources = ImageSources(hosts=image_hosts(option), max_images=option.max_images)
        try:
            return cls(processor, sources)
        except PayloadError as exc:
            raise ModelLoadError(f"{path}: the processor can't prepare a prompt with an image: {exc.message}") from exc

    async def prepare(self, text: str, sources: Sequence[ImageSource]) -> tuple[list[int], Images]:
        """The ids of a rendered chat, and its images.

        Raises:
            PayloadError: an image can't be fetched, or is not an image; names its field.
        """
        async with self.sources.room(sources):
            files = await self.sources.fetch(sources)
            made = await asyncio.wrap_future(self._thread.submit(self._prepare, text, sources, files))
        return made.ids, made.images

    async def close(self) -> None:
        """End the thread and the connections."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        await self.sources.close()

    def _prepare(self, text: str, sources: Sequence[ImageSource], files: Sequence[bytes | None]) -> ImagePrompt:
        if text.count(self._token) != len(sources):
            raise PayloadError(
                f"messages: the chat template writes {self._token} {text.count(self._token)} times for {len(sources)} "
                "images; a message's text must not have it",
                "messages",
            )
        if written := [each for each in self._placeholders if each != self._token and each in text]:
            raise PayloadError(f"messages: a message's text must not have {written[0]}", "messages")
        return self._made(text, decode(sources, files))

    def _accepted(self, tokens: Sequence[str]) -> tuple[str, ImagePrompt]:
        """(the first token that the processor takes for an image, a prompt with it)

        Raises:
            PayloadError: it takes none of them.
        """
        *others, last = tokens
        for token in others:
            with contextlib.suppress(PayloadError):
                return token, self._made(token + _EXAMPLE_TEXT, [_example()])
        return last, self._made(last + _EXAMPLE_TEXT, [_example()])

    def _made(self, text: str, pictures: Sequence[DecodedImage]) -> ImagePrompt:
        try:
            made = self._processor(
                text=[text],
                images=[[picture.image for picture in pictures]],
                add_special_tokens=False,  # the template has written them
                return_tensors="np",
                return_text_replacement_offsets=True,
            )
        except ValueError as exc:
            raise PayloadError(f"messages: the model's processor refuses the images: {exc}", "messages") from exc
        ids = np.asarray(made["input_ids"])[0]
        positions = np.flatnonzero(np.isin(ids, self._placeholder_ids))
        written = [entry["replacement"] for entry in made.get("text_replacement_offsets", [[]])[0]]
        inputs = {name: _array(np.asarray(made[name])) for name in made if name not in _NOT_INPUTS}
        marks = tuple(self._marks(written, positions, pictures))
        return ImagePrompt(ids.tolist(), Images(inputs, marks, int(positions[-1]) + 1))

    def _marks(
        self, written: list[str], positions: np.ndarray[Any, Any], pictures: Sequence[DecodedImage]
    ) -> Iterator[tuple[int, bytes]]:
        """Where each image begins, with its digest.

        If the processor doesn't say which placeholders belong to which image, one mark at the first placeholder stands
        for all.

        Raises:
            PayloadError: a message's own text contains a placeholder of images.
        """
        if len(written) != len(pictures):
            everything = hashlib.sha256(b"".join(picture.digest for picture in pictures)).digest()
            yield int(positions[0]), everything
            return
        counts = [sum(text.count(token) for token in self._placeholders) for text in written]
        if sum(counts) != len(positions):
            raise PayloadError(
                f"messages: a message's text must not have {' or '.join(self._placeholders)}", "messages"
            )
        first = 0
        for count, picture in zip(counts, pictures, strict=True):
            yield int(positions[first]), picture.digest
            first += count


def _has_eyes(path: Path) -> bool:
    """Whether a checkpoint is an image-text-to-text model, and has the configuration of a processor."""
    try:
        config = json.loads((path / "config.json").read_bytes())
    except (OSError, ValueError):  # an engine that needs no checkpoint
        return False
    if not isinstance(config.get("vision_config"), dict) or not any(
        (path / name).is_file() for name in PROCESSOR_FILES
    ):
        return False
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    auto_map = config.get("auto_map") or {}
    return config.get("model_type") in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES or any(
        "ImageTextToText" in name for name in auto_map
    )


def _array(numbers: np.ndarray[Any, Any]) -> Array:
    return Array(numbers.dtype.str, numbers.shape, numbers.tobytes())


def _example() -> DecodedImage:
    """An image of noise: it has content in every corner."""
    from PIL import Image

    width, height = _EXAMPLE_SIZE
    noise = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    return DecodedImage(Image.fromarray(noise), b"example")
