"""Fetches remote images of a chat, decodes images, and refuses invalid ones.

Runs in the worker: the network in its event loop, decoding in a thread.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import io
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import httpx2

from djl_python.config import Options
from djl_python.core.errors import PayloadError
from djl_python.core.types import ImageSource
from djl_python.fetching.addresses import AddressError, host_key
from djl_python.fetching.images import CheckedTransport, Resolve

#: Formats that Pillow decodes by itself; some others are programs. TIFF's library writes endless lines to stderr.
FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
#: Limits for the bytes of one file, and the pixels of a prompt's images together: decoded, a pixel takes three bytes.
MAX_BYTES: Final = 20 * 2**20
MAX_PIXELS: Final = 100_000_000
#: Remote files that all chats together may hold, or option.max_images if larger: each file may have MAX_BYTES.
FILES_AT_ONCE: Final = 16
FETCH_TIMEOUT_S: Final = 10.0
_MAX_REDIRECTS: Final = 3
_REMOTE: Final = ("http://", "https://")


@dataclass(frozen=True)
class DecodedImage:
    """A decoded image, upright and in RGB. `digest` identifies its content."""

    image: Any
    digest: bytes


def image_hosts(option: Options) -> frozenset[str]:
    """The hosts whose images a model's options let requests name; empty where they may name none."""
    if not option.allow_remote_images:
        return frozenset()
    return frozenset(map(host_key, option.allowed_image_hosts.split(",")))


class ImageSources:
    """Reads the images at the URLs of a chat. Close it.

    Args:
        hosts: the hosts whose http(s) URLs are fetched, as `CheckedTransport` takes them. Clients can make this server
            send requests to them. Empty: no URL is fetched.
        max_images: the most images of a prompt.
        resolve: as for `CheckedTransport`.
    """

    def __init__(self, *, hosts: Collection[str], max_images: int, resolve: Resolve | None = None) -> None:
        self._max_images = max_images
        self._fetcher = Fetcher(hosts, resolve) if hosts else None
        self._places = asyncio.Semaphore(max(max_images, FILES_AT_ONCE))
        self._turn = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def room(self, sources: Sequence[ImageSource]) -> AsyncIterator[None]:
        """Wait until there is room for the files of `sources`, and hold it until the context ends.

        First come, first served, so that a chat with many images gets its turn too. A chat without remote images does
        not wait.
        """
        remote = sum(source.url.lower().startswith(_REMOTE) for source in sources)
        if not remote:
            yield
            return
        taken = 0
        try:
            async with self._turn:
                while taken < min(remote, self._max_images):
                    await self._places.acquire()
                    taken += 1
            yield
        finally:
            for _ in range(taken):
                self._places.release()

    async def fetch(self, sources: Sequence[ImageSource]) -> list[bytes | None]:
        """The files of the sources, in order; None for an image that is in a data URL.

        Raises:
            PayloadError: too many images, one that can't be fetched, or a URL of another kind; names the field.
        """
        if len(sources) > self._max_images:
            field = sources[self._max_images].field
            raise PayloadError(f"{field}: expected at most {self._max_images} images, got {len(sources)}", field)
        tasks = [asyncio.ensure_future(self._fetch(source)) for source in sources]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:  # if one fails, the others are not needed
                task.cancel()

    async def _fetch(self, source: ImageSource) -> bytes | None:
        if source.url[:5].lower() == "data:":
            return None
        if not source.url.lower().startswith(_REMOTE):
            raise _refused(source, f"expected a data: URL{' or an http(s) URL' if self._fetcher else ''}")
        if self._fetcher is None:
            raise _refused(source, "expected a data: URL; this server fetches none (option.allow_remote_images)")
        return await self._fetcher.fetch(source)

    async def close(self) -> None:
        """Close the connections."""
        if self._fetcher is not None:
            await self._fetcher.close()


class Fetcher:
    """Fetches images over HTTP, where `CheckedTransport` lets it: strangers must not reach into this server's network.

    Redirects are followed here, each hop a request that is checked like the first.
    """

    def __init__(self, hosts: Collection[str], resolve: Resolve | None = None) -> None:
        self._client = httpx2.AsyncClient(
            transport=CheckedTransport(hosts, resolve),
            timeout=FETCH_TIMEOUT_S,
            # nothing is unpacked: a few bytes could become more than there is memory for
            headers={"accept": "image/*", "accept-encoding": "identity", "connection": "close"},
            trust_env=False,  # it would take the password for a host from ~/.netrc
        )

    async def fetch(self, source: ImageSource) -> bytes:
        """The file at an http(s) URL.

        Raises:
            PayloadError: it can't be fetched, or is too large.
        """
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_S):
                return await self._follow(source)
        except TimeoutError as exc:
            raise _refused(source, f"no answer within {FETCH_TIMEOUT_S:.0f} seconds") from exc
        except AddressError as exc:
            raise _refused(source, "images are not fetched from this host (option.allowed_image_hosts)") from exc
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as exc:
            raise _refused(source, f"can't be fetched ({type(exc).__name__})") from exc

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _follow(self, source: ImageSource) -> bytes:
        url = httpx2.URL(source.url)
        for _ in range(_MAX_REDIRECTS + 1):
            if url.scheme not in ("http", "https"):
                raise _refused(source, "redirects to what is no http(s) URL")
            if url.userinfo:
                raise _refused(source, "expected no user and password in the URL")
            async with self._client.stream("GET", url) as response:
                if not response.has_redirect_location:
                    return await self._read(response, source)
                url = url.join(response.headers["location"])
        raise _refused(source, f"more than {_MAX_REDIRECTS} redirects")

    @staticmethod
    async def _read(response: httpx2.Response, source: ImageSource) -> bytes:
        if response.status_code != 200:
            raise _refused(source, f"expected an image, got status {response.status_code}")
        data = bytearray()
        async for piece in response.aiter_raw():
            data += piece
            if len(data) > MAX_BYTES:
                raise _refused(source, f"expected at most {MAX_BYTES // 2**20} MiB")
        return bytes(data)


def decode(sources: Sequence[ImageSource], files: Sequence[bytes | None]) -> list[DecodedImage]:
    """Decode images. Slow.

    Args:
        files: as from `ImageSources.fetch`.

    Raises:
        PayloadError: a file is not an image, or too large; names the field.
    """
    pictures: list[DecodedImage] = []
    pixels = 0
    for source, file in zip(sources, files, strict=True):
        data = _inline(source) if file is None else file
        image = _opened(source, data)
        pixels += image.width * image.height
        if pixels > MAX_PIXELS:
            raise _refused(
                source, f"expected at most {MAX_PIXELS // 10**6} megapixels, those of earlier images included"
            )
        pictures.append(DecodedImage(_upright(source, image), hashlib.sha256(data).digest()))
    return pictures


def _inline(source: ImageSource) -> bytes:
    """The bytes of a data URL (RFC 2397)."""
    head, comma, body = source.url.partition(",")
    parts = head[len("data:") :].split(";")
    if not comma or (parts[0] and not parts[0].lower().startswith("image/")):
        raise _refused(source, "expected data:image/...;base64,...")
    if parts[-1].lower() != "base64":
        return unquote_to_bytes(body)
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise _refused(source, f"not valid base64: {exc}") from exc


def _opened(source: ImageSource, data: bytes) -> Any:
    """The image, of which only the header has been read."""
    from PIL import Image

    if len(data) > MAX_BYTES:
        raise _refused(source, f"expected at most {MAX_BYTES // 2**20} MiB")
    with _reading(source):
        return Image.open(io.BytesIO(data), formats=FORMATS)


def _upright(source: ImageSource, image: Any) -> Any:
    """The first frame of an image in RGB, turned upright by its EXIF orientation.

    Pillow's own exif_transpose rewrites the EXIF data, and fails at any odd entry.
    """
    from PIL import ExifTags, Image

    turns = Image.Transpose
    with _reading(source):
        image.load()
        turn = {
            2: turns.FLIP_LEFT_RIGHT,
            3: turns.ROTATE_180,
            4: turns.FLIP_TOP_BOTTOM,
            5: turns.TRANSPOSE,
            6: turns.ROTATE_270,
            7: turns.TRANSVERSE,
            8: turns.ROTATE_90,
        }.get(image.getexif().get(ExifTags.Base.Orientation))
        return (image if turn is None else image.transpose(turn)).convert("RGB")


@contextlib.contextmanager
def _reading(source: ImageSource) -> Iterator[None]:
    """Turn any exception of Pillow into a refusal of the client's image: its readers raise anything for a broken one.

    Raises:
        PayloadError: Pillow raised something.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        yield
    except UnidentifiedImageError as exc:
        raise _refused(source, f"not an image in one of the formats {', '.join(FORMATS)}") from exc
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as exc:
        raise _refused(source, f"expected at most {MAX_PIXELS // 10**6} megapixels") from exc
    except Exception as exc:
        raise _refused(source, f"the image is broken: {str(exc) or type(exc).__name__}") from exc


def _refused(source: ImageSource, why: str) -> PayloadError:
    return PayloadError(f"{source.field}: {why}", source.field)
