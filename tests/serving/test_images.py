"""Images in chats, over real sockets: what transformers makes of a chat is what OpenAI's own client gets."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from PIL.Image import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from djl_python.testing import RunningServer, running_server
from tests.vision_checkpoints import build_vision_checkpoint, data_url, picture, png

NEW_TOKENS = 12
ASKED: dict[str, Any] = {"max_tokens": NEW_TOKENS, "temperature": 0}
Part = str | Image


@dataclass
class Vision:
    """A model directory, and transformers' own model of its checkpoint."""

    directory: Path
    processor: Any
    model: Any

    @classmethod
    def build(cls, folder: Path, name: str, architecture: str, **options: str) -> Vision:
        """A model directory in `folder`."""
        checkpoint = folder / "checkpoints" / name
        build_vision_checkpoint(checkpoint, architecture)
        (folder / name).mkdir()
        lines = [
            f"option.{key}={value}" for key, value in {"model_id": str(checkpoint), "threads": "1", **options}.items()
        ]
        (folder / name / "serving.properties").write_text("\n".join(lines))
        model = AutoModelForImageTextToText.from_pretrained(checkpoint, dtype=torch.float32)
        return cls(folder / name, AutoProcessor.from_pretrained(checkpoint), model)

    def expected(self, *parts: Part) -> tuple[int, str]:
        """Prompt tokens and answer, as transformers has them."""
        content = [_text(part) if isinstance(part, str) else {"type": "image", "image": part} for part in parts]
        inputs = self.processor.apply_chat_template(
            [{"role": "user", "content": content}],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
        )
        out = self.model.generate(**inputs, max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0)
        length = inputs["input_ids"].shape[1]
        return length, self.processor.tokenizer.decode(out[0, length:], skip_special_tokens=True)


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def content(*parts: Part | dict[str, Any]) -> list[Any]:
    """Texts and images as a client sends them."""
    return [
        _text(part)
        if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": data_url(part), "detail": "low"}}
        if isinstance(part, Image)
        else part
        for part in parts
    ]


def remote(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


@pytest.fixture(scope="module")
def visions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Vision]:
    folder = tmp_path_factory.mktemp("models")
    return {
        "eyes": Vision.build(folder, "eyes", "llava", tgi_dialect="mindie", max_images="3"),
        "reader": Vision.build(
            folder, "reader", "idefics3", allow_remote_images="true", allowed_image_hosts="127.0.0.1"
        ),
    }


@pytest.fixture(scope="module")
def server(visions: dict[str, Vision]) -> Iterator[RunningServer]:
    models = [argument for name, vision in visions.items() for argument in ("-m", f"{name}={vision.directory}")]
    with running_server(*models, environment={"SERVING_DEFAULT_MODEL": "eyes"}) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, model: str, *parts: Any, **fields: Any) -> Any:
    return client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": content(*parts)}], **(ASKED | fields)
    )


@contextmanager
def site() -> Iterator[str]:
    """A web server with one image."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/image.png" else 404)
            self.end_headers()
            self.wfile.write(png(picture(1)))

        def log_message(self, *_: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_port}"
        listening.shutdown()


# ------------------------------------------------------------------------------------------------ answers


@pytest.mark.parametrize("name", ["eyes", "reader"])
def test_an_answer_is_transformers_own(client: openai.OpenAI, visions: dict[str, Vision], name: str) -> None:
    answers = []
    for parts in (
        ("What is this? ", picture(1)),
        ("What is this? ", picture(2)),
        (picture(1), " or ", picture(2), "?"),
    ):
        answer = ask(client, name, *parts)
        length, text = visions[name].expected(*parts)
        assert answer.choices[0].message.content.rstrip("\ufffd") == text.rstrip("\ufffd")
        assert answer.usage.prompt_tokens == length
        answers.append(text)
    assert len(set(answers)) == 3, "the images make a difference"


def test_text_alone(client: openai.OpenAI, visions: dict[str, Vision]) -> None:
    """The template reads lists of parts only, and the client sends a string."""
    answer = client.chat.completions.create(
        model="eyes", messages=[{"role": "user", "content": "What is this?"}], **ASKED
    )
    length, text = visions["eyes"].expected("What is this?")
    assert answer.choices[0].message.content is not None and answer.usage is not None
    assert answer.choices[0].message.content.rstrip("\ufffd") == text.rstrip("\ufffd")
    assert answer.usage.prompt_tokens == length
    literal = ask(client, "eyes", "What is <image>?")
    assert literal.usage.prompt_tokens == length - len("this") + 1


async def test_together_and_streamed(server: RunningServer, client: openai.OpenAI, visions: dict[str, Vision]) -> None:
    asked: list[tuple[Part, ...]] = [
        *((f"{i}: ", picture(i), "?") for i in range(4)),
        *((f"{i}: no picture",) for i in range(4)),
    ]
    alone = [ask(client, "eyes", *parts).choices[0].message.content for parts in asked]

    async def streamed(session: openai.AsyncOpenAI, *parts: Part) -> str:
        chunks = await session.chat.completions.create(
            model="eyes", messages=[{"role": "user", "content": content(*parts)}], stream=True, **ASKED
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as session:
        together = await asyncio.gather(*(streamed(session, *parts) for parts in asked * 2))
    assert together == alone * 2


def test_several_choices_and_lmi_see_the_image(client: openai.OpenAI, server: RunningServer) -> None:
    answer = ask(client, "eyes", "a ", picture(1), n=3)
    assert len({choice.message.content for choice in answer.choices}) == 1
    body = {"messages": [{"role": "user", "content": content("a ", picture(1))}], **ASKED}
    status, answered = post(f"{server.url}/predictions/eyes", body)
    assert status == 200
    assert answered["choices"][0]["message"]["content"] == answer.choices[0].message.content
    status, answered = post(
        f"{server.url}/predictions/eyes", {"messages": [{"role": "user", "content": [remote("x")]}]}
    )
    assert (status, answered["code"]) == (424, 424)
    assert answered["error"].startswith("messages[0].content[0].image_url.url: expected a data: URL")


# ------------------------------------------------------------------------------------------------ where images are


def test_remote_images(client: openai.OpenAI) -> None:
    with site() as url:
        fetched = ask(client, "reader", "What? ", remote(f"{url}/image.png"))
        inline = ask(client, "reader", "What? ", picture(1))
        assert fetched.choices[0].message.content == inline.choices[0].message.content
        with pytest.raises(openai.BadRequestError, match="got status 404") as caught:
            ask(client, "reader", "What? ", remote(f"{url}/other.png"))
        assert caught.value.param == "messages[0].content[1].image_url.url"
        elsewhere = url.replace("127.0.0.1", "localhost")
        with pytest.raises(openai.BadRequestError, match=r"not fetched from this host \(option.allowed_image_hosts"):
            ask(client, "reader", "What? ", remote(f"{elsewhere}/image.png"))
        with pytest.raises(openai.BadRequestError, match=r"fetches none \(option.allow_remote_images\)"):
            ask(client, "eyes", "What? ", remote(f"{url}/image.png"))


@pytest.mark.parametrize(
    ("parts", "param", "message"),
    [
        ((remote("data:,"),), "messages[0].content[0].image_url.url", "not an image in one of the formats"),
        (("a", remote("data:image/png;base64,@")), "messages[0].content[1].image_url.url", "not valid base64"),
        ((remote("file:///etc/passwd"),), "messages[0].content[0].image_url.url", "expected a data: URL"),
        ((picture(1),) * 4, "messages[0].content[3].image_url.url", "expected at most 3 images, got 4"),
        (("<image> ", picture(1)), "messages", "writes <image> 2 times for 1 images"),
        ((picture(1), "x" * 600), "messages", "maximum context length is 512 tokens"),
    ],
)
def test_bad_images(client: openai.OpenAI, parts: tuple[Any, ...], param: str, message: str) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            ask(client, "eyes", *parts, stream=stream)
        assert (caught.value.param, caught.value.type) == (param, "invalid_request_error")
        assert message in caught.value.message


# ------------------------------------------------------------------------------------------------ MindIE


def post(url: str, body: dict[str, Any]) -> tuple[int, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            text = response.read().decode()
            return response.status, json.loads(text) if text.startswith("{") else text
    except urllib.error.HTTPError as refused:
        return refused.code, json.loads(refused.read())


def test_mindie(server: RunningServer, visions: dict[str, Vision]) -> None:
    def inputs(url: str) -> list[dict[str, str]]:
        return [{"type": "text", "text": "What? "}, {"type": "image_url", "image_url": url}]

    body = {"inputs": inputs(data_url(picture(1))), "parameters": {"max_new_tokens": NEW_TOKENS, "details": True}}
    status, stream = post(f"{server.url}/generate_stream", body)
    assert status == 200
    last = json.loads(stream.strip().rpartition("data:")[2])
    length, text = visions["eyes"].expected("What? ", picture(1))
    assert last["generated_text"].rstrip("\ufffd") == text.rstrip("\ufffd")
    assert last["details"]["prompt_tokens"] == length
    status, answer = post(f"{server.url}/generate_stream", {"inputs": inputs("data:,"), "parameters": {}})
    assert status == 422
    assert answer["error"].startswith("Input validation error: inputs[1].image_url: not an image")
