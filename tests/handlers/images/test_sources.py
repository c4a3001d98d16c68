"""Images of chats: where they may be, what they may be, and what is said of those that may not."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from urllib.parse import quote

import numpy as np
import pytest
from aiohttp import web
from PIL import Image, ImageOps

from djl_python.config import Options
from djl_python.core.errors import PayloadError
from djl_python.core.types import ImageSource
from djl_python.handlers.images import sources as image_sources
from djl_python.handlers.images.sources import ImageSources, decode, image_hosts
from tests.vision_checkpoints import data_url, picture, png

FIELD = "messages[0].content[1].image_url.url"


def source(url: str) -> ImageSource:
    return ImageSource(url, FIELD)


def inline(data: bytes, kind: str = "image/png") -> ImageSource:
    return source(f"data:{kind};base64,{base64.b64encode(data).decode()}")


def decoded(*sources: ImageSource) -> list[image_sources.DecodedImage]:
    images: list[image_sources.DecodedImage] = decode(sources, [None] * len(sources))
    return images


def refused(*sources: ImageSource) -> str:
    with pytest.raises(PayloadError) as caught:
        decoded(*sources)
    assert caught.value.field == FIELD
    assert caught.value.message.startswith(f"{FIELD}: ")
    return caught.value.message.removeprefix(f"{FIELD}: ")


# ------------------------------------------------------------------------------------------------ decoding


def test_a_data_url_is_its_image() -> None:
    image = picture(1)
    for url in (data_url(image), data_url(image).replace("data:image/png", "DATA:IMAGE/PNG;x=y")):
        (decoded_image,) = decoded(source(url))
        assert np.array_equal(np.asarray(decoded_image.image), np.asarray(image))
    (unpadded,) = decoded(source(f"data:image/png,{quote(png(image))}"))
    assert unpadded == decoded_image


def test_the_digest_stands_for_the_content() -> None:
    first, second, again = decoded(*(source(data_url(picture(seed))) for seed in (1, 2, 1)))
    assert first.digest == again.digest != second.digest
    assert len(first.digest) == 32


def test_images_come_upright_in_rgb_and_still() -> None:
    image = Image.new("L", (20, 10))
    image.paste(255, (0, 0, 10, 10))
    exif = image.getexif()
    exif[0x0112] = 6  # the camera was turned: the top is on the right
    file = io.BytesIO()
    image.save(file, "PNG", exif=exif)
    animation = io.BytesIO()
    frames = [Image.new("P", (20, 10), color) for color in (1, 2)]
    frames[0].save(animation, "GIF", save_all=True, append_images=frames[1:])
    turned, still = decoded(inline(file.getvalue()), inline(animation.getvalue(), "image/gif"))
    assert (turned.image.size, turned.image.mode) == ((10, 20), "RGB")
    assert [turned.image.getpixel((5, y)) for y in (2, 18)] == [(255, 255, 255), (0, 0, 0)]
    assert (still.image.size, still.image.mode) == ((20, 10), "RGB")


@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_odd_entry_beside_the_orientation_costs_nothing(kind: str, orientation: int) -> None:
    image = Image.new("L", (24, 16))
    image.paste(255, (0, 0, 12, 8))
    odd = struct.pack("<HHI4s", 0x0128, 2, 2, b"2\0\0\0")  # ResolutionUnit, as text
    entries = struct.pack("<HHIHH", 0x0112, 3, 1, orientation, 0) + odd
    file = io.BytesIO()
    image.save(file, kind, exif=b"Exif\0\0" + struct.pack("<2sHIH", b"II", 42, 8, 2) + entries + bytes(4))
    usual = Image.Exif()
    usual[0x0112] = orientation
    other = io.BytesIO()
    image.save(other, "PNG", exif=usual)
    (decoded_image,) = decoded(inline(file.getvalue()))
    expected = ImageOps.exif_transpose(Image.open(other)).convert("RGB")
    assert decoded_image.image.size == expected.size
    assert np.abs(np.asarray(decoded_image.image, int) - np.asarray(expected, int)).max() < 64


def test_data_that_is_no_image_is_refused() -> None:
    whole = png(picture(1))
    assert refused(source("data:,")).startswith("not an image in one of the formats PNG, JPEG")
    assert refused(source("data:image/png;base64")) == "expected data:image/...;base64,..."
    assert refused(inline(whole, "text/plain")) == "expected data:image/...;base64,..."
    assert refused(source("data:image/png;base64,@@@@")).startswith("not valid base64")
    assert refused(inline(b"<html>")).startswith("not an image in one of the formats")
    assert refused(inline(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")).startswith("not an image in one of")
    assert refused(inline(whole[: len(whole) // 2])).startswith("the image is broken")


@pytest.mark.parametrize("place", ["PIL.Image.open", "PIL.PngImagePlugin.PngImageFile.load"])
@pytest.mark.parametrize("raised", [TypeError("no sense"), IndexError(), AssertionError(), RecursionError("deep")])
def test_errors_of_image_readers_are_about_the_image(
    monkeypatch: pytest.MonkeyPatch, place: str, raised: Exception
) -> None:
    """They raise whatever they come upon, at the head of a file or in the middle of it."""
    some = inline(png(picture(1)))

    def broken(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr(place, broken)
    assert refused(some) == f"the image is broken: {str(raised) or type(raised).__name__}"


@pytest.mark.parametrize("kind", image_sources.FORMATS)
def test_damaged_images_are_pictures_or_refused(kind: str) -> None:
    file = io.BytesIO()
    picture(1).save(file, kind)
    generator = np.random.default_rng(3)
    for _ in range(150):
        data = bytearray(file.getvalue())
        for place in generator.integers(0, min(len(data), 200), 4):
            data[place] = generator.integers(0, 256)
        with contextlib.suppress(PayloadError):
            decoded(inline(bytes(data)))


def test_formats_whose_libraries_talk_are_not_read(capfd: pytest.CaptureFixture[str]) -> None:
    file = io.BytesIO()
    picture(1).save(file, "TIFF", compression="tiff_lzw")
    assert refused(inline(file.getvalue()[:-40], "image/tiff")).startswith("not an image in one of the formats")
    assert capfd.readouterr().err == ""


def test_large_images_are_refused_before_they_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.BytesIO()
    Image.new("1", (20_000, 10_000)).save(file, "PNG")
    assert len(file.getvalue()) < 100_000
    assert refused(inline(file.getvalue())).startswith("expected at most 100 megapixels")
    monkeypatch.setattr(image_sources, "MAX_PIXELS", 40 * 30 * 2)
    some = source(data_url(picture(1)))
    assert len(decoded(some, some)) == 2
    assert "those of earlier images included" in refused(some, some, some)
    monkeypatch.setattr(image_sources, "MAX_BYTES", 100)
    assert refused(some) == "expected at most 0 MiB"


# ------------------------------------------------------------------------------------------------ fetching


Site = Callable[[str], str]
ELSEWHERE = "images are not fetched from this host (option.allowed_image_hosts)"
GONE = "http://127.0.0.1:9/"  # the discard port: nobody listens


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    """A web server with an image; gives the URL of a path."""
    never = asyncio.Event()

    async def image(request: web.Request) -> web.Response:
        return web.Response(body=png(picture(1)), content_type="image/png")

    async def slow(request: web.Request) -> web.Response:
        await never.wait()
        raise AssertionError

    async def drip(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while not never.is_set():
            await response.write(b"x")
            await asyncio.sleep(0.01)
        return response

    async def redirect(request: web.Request) -> web.Response:
        raise web.HTTPFound(request.query["to"])

    async def nowhere(request: web.Request) -> web.Response:
        return web.Response(status=304)

    app = web.Application()
    app.router.add_get("/image.png", image)
    app.router.add_get("/slow", slow)
    app.router.add_get("/drip", drip)
    app.router.add_get("/nowhere", nowhere)
    app.router.add_get("/redirect", redirect)
    runner = web.AppRunner(app, shutdown_timeout=0.01)
    await runner.setup()
    listener = web.TCPSite(runner, "127.0.0.1", 0)
    await listener.start()
    port = runner.addresses[0][1]
    yield lambda path: f"http://127.0.0.1:{port}{path}"
    never.set()
    await runner.cleanup()


@pytest.fixture
async def sources() -> AsyncIterator[ImageSources]:
    opened = ImageSources(hosts=("127.0.0.1",), max_images=3)
    yield opened
    await opened.close()


Refuses = Callable[..., Awaitable[str]]


@pytest.fixture
def refuses(sources: ImageSources) -> Refuses:
    async def why(*urls: str) -> str:
        with pytest.raises(PayloadError) as caught:
            await sources.fetch([source(url) for url in urls])
        assert caught.value.field == FIELD
        return caught.value.message.removeprefix(f"{FIELD}: ")

    return why


async def test_remote_images_are_fetched(sources: ImageSources, site: Site) -> None:
    whole = png(picture(1))
    urls = [site("/image.png"), data_url(picture(2)), site(f"/redirect?to={site('/image.png')}")]
    given = [source(url) for url in urls]
    files = await sources.fetch(given)
    assert files == [whole, None, whole]
    first, second, third = decode(given, files)
    assert first.digest == third.digest != second.digest


async def test_remote_images_only_where_they_are_allowed(site: Site) -> None:
    closed = ImageSources(hosts=(), max_images=3)
    with pytest.raises(PayloadError, match=r"expected a data: URL; this server fetches none"):
        await closed.fetch([source(site("/image.png"))])
    assert await closed.fetch([source(data_url(picture(1)))]) == [None]


async def test_urls_of_other_kinds_and_failed_requests_are_refused(
    refuses: Refuses, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await refuses("/etc/passwd") == "expected a data: URL or an http(s) URL"
    assert await refuses("file:///etc/passwd") == "expected a data: URL or an http(s) URL"
    assert await refuses("ftp://127.0.0.1/x.png") == "expected a data: URL or an http(s) URL"
    assert await refuses(site("/nothing")) == "expected an image, got status 404"
    assert await refuses(GONE) == "can't be fetched (ConnectError)"
    assert await refuses("http://[broken") == ELSEWHERE
    assert (await refuses("http://127.0.0.1:port/")).startswith("can't be fetched")
    assert await refuses(site("/redirect?to=file:///etc/passwd")) == "redirects to what is no http(s) URL"
    assert await refuses(site("/redirect?to=http://169.254.169.254/latest")) == ELSEWHERE
    assert await refuses(site("/redirect?to=http://8.8.8.8/")) == ELSEWHERE
    assert (
        await refuses(site("/image.png").replace("//", "//user:secret@")) == "expected no user and password in the URL"
    )
    assert await refuses(site("/nowhere")) == "expected an image, got status 304"
    again = site("/redirect?to=")
    assert await refuses(again + quote(again + quote(again + quote(again + site("/image.png"))))) == (
        "more than 3 redirects"
    )
    assert await refuses(*[site("/image.png")] * 4) == "expected at most 3 images, got 4"
    monkeypatch.setattr(image_sources, "MAX_BYTES", 100)
    assert await refuses(site("/image.png")) == "expected at most 0 MiB"


async def test_a_slow_site_does_not_hold_a_request(
    refuses: Refuses, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_sources, "FETCH_TIMEOUT_S", 0.1)
    assert (await refuses(site("/slow"))).startswith("no answer within")
    assert (await refuses(site("/drip"))).startswith("no answer within")  # though each read is quick


async def test_files_of_many_chats_are_not_held_together(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_sources, "FILES_AT_ONCE", 2)
    opened = ImageSources(hosts=("127.0.0.1",), max_images=3)
    held = most = 0
    done: list[int] = []

    async def chat(number: int, *urls: str) -> None:
        nonlocal held, most
        given = [source(url) for url in urls]
        async with opened.room(given):
            files = await opened.fetch(given)
            held += len(files)
            most = max(most, held)
            await asyncio.sleep(0.01)
            held -= len(files)
        done.append(number)

    remote = site("/image.png")
    await asyncio.gather(*(chat(number, *[remote] * (1 + number % 3)) for number in range(9)))
    assert most == 3
    assert sorted(done) == list(range(9))
    async with opened.room([source(remote)] * 3):
        waiting = asyncio.ensure_future(chat(9, remote))
        await asyncio.sleep(0.01)
        async with asyncio.timeout(5), opened.room([source(data_url(picture(1)))]):
            pass  # takes none of it, and does not stand in line
        waiting.cancel()
    async with asyncio.timeout(5), opened.room([source(remote)] * 3):
        pass  # who was cancelled holds nothing
    await opened.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::1]", "[::ffff:7f00:1]"])
async def test_addresses_in_the_servers_network_are_not_fetched(host: str, site: Site) -> None:
    opened = ImageSources(hosts=("*",), max_images=3)
    with pytest.raises(PayloadError) as caught:
        await opened.fetch([source(site("/image.png").replace("127.0.0.1", host))])
    assert caught.value.message == f"{FIELD}: {ELSEWHERE}"
    await opened.close()


async def test_a_redirect_does_not_lead_inside(site: Site) -> None:
    """The first hop is allowed; a host is checked at each."""
    opened = ImageSources(hosts=("127.0.0.1", "*"), max_images=3)
    for target in ("http://10.0.0.1/", "http://169.254.169.254/latest", "http://localhost/", "http://[::1]/"):
        with pytest.raises(PayloadError) as caught:
            await opened.fetch([source(site(f"/redirect?to={quote(target)}"))])
        assert caught.value.message == f"{FIELD}: {ELSEWHERE}"
    await opened.close()


def test_hosts_of_a_models_options() -> None:
    assert image_hosts(Options()) == frozenset()
    assert image_hosts(Options(allow_remote_images=True)) == {"*"}
    listed = "Images.Example.com., *, [::0:1] ,10.0.0.7"
    assert image_hosts(Options(allow_remote_images=True, allowed_image_hosts=listed)) == {
        *("images.example.com", "*", "::1", "10.0.0.7")
    }
