"""Prepares a chat with images for an engine that processes images itself: decodes them, and tokenizes the prompt.

Runs in the worker: decoding in a thread of its own.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import numpy as np

from djl_python.config import Options
from djl_python.core.sequence_request import Pictures
from djl_python.core.types import Array, ImageSource

from .sources import DecodedImage, ImageSources, decode, image_hosts

Expand = Callable[[Pictures], Awaitable[list[int]]]


class PictureReader:
    """Reads images. Close it.

    Args:
        encode: the ids of a rendered chat.
        expand: `EngineClient.expand`.
    """

    def __init__(self, option: Options, encode: Callable[[str], list[int]], expand: Expand) -> None:
        self._sources = ImageSources(hosts=image_hosts(option), max_images=option.max_images)
        self._encode = encode
        self._expand = expand
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="images")

    async def prepare(self, text: str, sources: Sequence[ImageSource]) -> tuple[list[int], Pictures]:
        """The ids that the model gets for a rendered chat, and its images.

        Raises:
            PayloadError: an image can't be fetched, or is not an image; names its field.
            ParameterError: the engine refuses them.
        """
        async with self._sources.room(sources):
            files = await self._sources.fetch(sources)
            pictures = await asyncio.wrap_future(self._thread.submit(self._read, text, sources, files))
        ids = await self._expand(pictures)
        return ids, msgspec.structs.replace(pictures, length=len(ids))

    async def close(self) -> None:
        """End the thread and the connections."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        await self._sources.close()

    def _read(self, text: str, sources: Sequence[ImageSource], files: Sequence[bytes | None]) -> Pictures:
        decoded = decode(sources, files)
        return Pictures(
            pixels=tuple(map(_pixels, decoded)),
            digests=tuple(picture.digest.hex() for picture in decoded),
            written=tuple(self._encode(text)),
        )


def _pixels(decoded: DecodedImage) -> Array:
    numbers = np.asarray(decoded.image)
    return Array(numbers.dtype.str, numbers.shape, numbers.tobytes())
