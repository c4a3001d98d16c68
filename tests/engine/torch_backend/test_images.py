"""The oracle with images: what continuous batching generates is what `model.generate(**processor(...))` generates."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL.Image import Image
from transformers import AutoModelForImageTextToText

from djl_python.core.errors import ModelLoadError
from djl_python.core.sequence_request import SequenceRequest
from djl_python.core.types import ImagePrompt, ImageSource, SamplingParams, TokenEvent
from djl_python.engine.builtin.paged_batch import PagedRollingBatch
from djl_python.engine.settings import BuiltInSettings
from djl_python.handlers.images.processor import ImageProcessor
from djl_python.handlers.images.sources import ImageSources
from tests.checkpoints import since
from tests.engines import run_to_end, step_tokens
from tests.vision_checkpoints import VISION_ARCHITECTURES, build_vision_checkpoint, data_url, picture

PAGED = tuple(name for name in ("llava", "idefics3", "qwen2_vl") if name in VISION_ARCHITECTURES)
SHOWS: dict[str, str] = {
    "llava": "<image>",
    "idefics3": "<image>",
    "qwen2_vl": "<|vision_start|><|image_pad|><|vision_end|>",
    "qwen3_vl": "<|vision_start|><|image_pad|><|vision_end|>",
    "gemma3": "<start_of_image>",
}


@dataclass
class Vision:
    """A checkpoint, what prepares prompts for it, and transformers' own model."""

    name: str
    path: Path
    processor: Any
    images: ImageProcessor
    model: Any

    def text(self, *parts: str | Image) -> str:
        return "".join(part if isinstance(part, str) else SHOWS[self.name] for part in parts)

    def prompt(self, *parts: str | Image) -> ImagePrompt:
        """Texts and images, one after the other, as the worker prepares them."""
        sources = [ImageSource(data_url(part), "image") for part in parts if not isinstance(part, str)]
        return ImagePrompt(*asyncio.run(self.images.prepare(self.text(*parts), sources)))

    def generate(self, parts: tuple[str | Image, ...], new_tokens: int) -> list[int]:
        """What transformers generates on its own."""
        images = [[part for part in parts if not isinstance(part, str)]]
        inputs = self.processor(
            text=[self.text(*parts)],
            images=images if images[0] else None,
            return_tensors="pt",
            add_special_tokens=False,
        )
        out = self.model.generate(**inputs, max_new_tokens=new_tokens, do_sample=False, pad_token_id=0)
        return [int(token_id) for token_id in out[0, inputs["input_ids"].shape[1] :]]

    def open(self, **settings: Any) -> PagedRollingBatch:
        defaults: dict[str, Any] = {"max_batch_size": 8, "max_prefill_tokens": 24, "kv_cache_memory_mb": 16}
        return PagedRollingBatch(
            BuiltInSettings(
                model_path=str(self.path), threads=1, image_example=self.images.example, **{**defaults, **settings}
            ),
            lambda what, done, total: None,
        )


Open = Callable[[str], Vision]


@pytest.fixture(scope="module")
def open_vision(tmp_path_factory: pytest.TempPathFactory) -> Open:
    opened: dict[str, Vision] = {}

    def open_one(name: str) -> Vision:
        if name not in opened:
            path = tmp_path_factory.mktemp(name)
            processor = build_vision_checkpoint(path, name)
            images = ImageProcessor(processor, ImageSources(hosts=(), max_images=4))
            model = AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32)
            opened[name] = Vision(name, path, processor, images, model)
        return opened[name]

    return open_one


def add(batch: PagedRollingBatch, number: int, prompt: ImagePrompt, **sampling: Any) -> None:
    batch.add(SequenceRequest(prompt.ids, SamplingParams(**sampling), id=number, images=prompt.images))


def ids_at_the_end(batch: PagedRollingBatch) -> dict[int, list[int]]:
    events = run_to_end(batch)
    assert [event.error for each in events.values() for event in each if event.error is not None] == []
    return {number: [event.token_id for event in each] for number, each in events.items()}


def random_parts(rng: random.Random) -> tuple[str | Image, ...]:
    """A prompt with no image, one or two, of a few that come again."""
    words = ["what is this? ", "and ", "a long story that is told before anything can be seen ", "x"]
    parts: list[str | Image] = [rng.choice(words)]
    for _ in range(rng.choice([0, 1, 1, 2])):
        parts += [picture(rng.randrange(3), rng.choice([40, 50]), rng.choice([30, 50])), rng.choice(words)]
    return tuple(parts)


@pytest.mark.parametrize("name", VISION_ARCHITECTURES)
def test_greedy_ids_are_those_of_generate_whatever_the_schedule(name: str, open_vision: Open) -> None:
    vision = open_vision(name)
    batch = vision.open()
    assert batch.takes_images
    assert ("KV cache" in batch.description) == (name in PAGED)
    rng = random.Random(5)
    requests = [(random_parts(rng), rng.choice([1, 4, 12])) for _ in range(20)]
    got: dict[int, list[int]] = {i: [] for i in range(len(requests))}
    waiting = list(enumerate(requests))
    while waiting or not batch.idle:
        for _ in range(rng.choice([0, 0, 1, 4])):
            if not waiting:
                continue
            number, (parts, new_tokens) = waiting.pop(0)
            if any(not isinstance(part, str) for part in parts):
                add(batch, number, vision.prompt(*parts), max_new_tokens=new_tokens)
            else:
                ids = vision.processor.tokenizer(vision.text(*parts), add_special_tokens=False)["input_ids"]
                batch.add(SequenceRequest(ids, SamplingParams(max_new_tokens=new_tokens), id=number))
        if not batch.idle:
            for event in batch.step():
                assert event.error is None, event.error
                got[event.request_id].append(event.token_id)
    assert got == {i: vision.generate(parts, new_tokens) for i, (parts, new_tokens) in enumerate(requests)}
    assert batch.stats.kv_blocks_used == 0


@pytest.mark.parametrize("name", PAGED)
def test_a_chunk_may_end_anywhere_in_an_image(name: str, open_vision: Open) -> None:
    vision = open_vision(name)
    parts = ("look: ", picture(1), " and ", picture(2), "?")
    expected = vision.generate(parts, 8)
    for budget in (1, 7, 512):
        batch = vision.open(max_prefill_tokens=budget)
        add(batch, 1, vision.prompt(*parts), max_new_tokens=8)
        assert ids_at_the_end(batch) == {1: expected}


@pytest.mark.parametrize("name", VISION_ARCHITECTURES)
def test_preempted_and_recomputed(name: str, open_vision: Open) -> None:
    vision = open_vision(name)
    batch = vision.open()
    requests = [(f"{i}: ", picture(i), "?") for i in range(4)]
    prompts = [vision.prompt(*parts) for parts in requests]
    # All of them fit when they begin, and not when they have grown.
    room = sum(len(prompt.ids) // 16 + 2 for prompt in prompts)
    batch.scheduler.blocks.__init__(room, 16, share=name in PAGED)  # type: ignore[misc]
    for number, prompt in enumerate(prompts):
        add(batch, number, prompt, max_new_tokens=60, ignore_eos=True)
    got = ids_at_the_end(batch)
    assert batch.stats.preemptions > 0
    for number, parts in enumerate(requests):
        expected = vision.generate(parts, 60)
        assert got[number][: len(expected)] == expected


@since("5.15")  # older processors do not tell where each of several images begins: one mark stands for all
@pytest.mark.parametrize("name", PAGED)
def test_blocks_are_shared_by_what_is_seen(name: str, open_vision: Open) -> None:
    vision = open_vision(name)
    batch = vision.open(max_prefill_tokens=512)

    def answer_to(*parts: str | Image) -> tuple[ImagePrompt, int, list[int]]:
        """The prompt, how many of its tokens were found in the cache, and the answer."""
        prompt = vision.prompt("This is the first of them: ", *parts)
        add(batch, 1, prompt, max_new_tokens=8, ignore_eos=True)
        events = batch.step()
        cached = len(prompt.ids) - step_tokens(batch)
        return prompt, cached, [event.token_id for event in events] + ids_at_the_end(batch)[1]

    first, second, question = picture(1), picture(2), " What is to be seen in it?"
    prompt, cached, answer = answer_to(first, question)
    begins = prompt.images.marks[0][0]
    assert cached == 0
    _, cached, other = answer_to(second, question)
    assert cached <= begins, "only the text before it"
    assert other != answer
    prompt, cached, again = answer_to(first, question)
    assert cached == (len(prompt.ids) - 1) // 16 * 16
    assert again == answer
    prompt, cached, _ = answer_to(first, question, second)
    assert begins < cached <= prompt.images.marks[1][0]


def test_a_failing_image_costs_the_others_nothing(open_vision: Open) -> None:
    vision = open_vision("llava")
    batch = vision.open()
    good, bad = vision.prompt("a ", picture(1)), vision.prompt("b ", picture(2))
    pixels = bad.images.inputs["pixel_values"]
    broken = type(pixels)(pixels.dtype, (1, 1, *pixels.shape[1:]), pixels.data)  # one dimension too many
    bad_images = type(bad.images)({"pixel_values": broken}, bad.images.marks, bad.images.end)
    add(batch, 1, good, max_new_tokens=6)
    batch.add(SequenceRequest(bad.ids, SamplingParams(max_new_tokens=6), id=2, images=bad_images))
    events: list[TokenEvent] = []
    while not batch.idle:
        try:
            events += batch.step()
        except (RuntimeError, ValueError) as exc:
            events += batch.isolate(exc)
    assert [event.token_id for event in events if event.request_id == 1] == vision.generate(("a ", picture(1)), 6)
    (failed,) = [event for event in events if event.request_id == 2]
    assert failed.error is not None and failed.error.startswith("generation failed")


def test_prompt_log_probabilities_see_the_image(open_vision: Open) -> None:
    vision = open_vision("llava")
    batch = vision.open()
    prompt = vision.prompt("look: ", picture(1), " there")
    add(batch, 1, prompt, max_new_tokens=1, prompt_logprobs=0)
    events = []
    while not batch.idle:
        events += batch.step()
    inputs = vision.processor(
        text=[vision.text("look: ", picture(1), " there")], images=[[picture(1)]], return_tensors="pt"
    )
    with torch.inference_mode():
        logprobs = vision.model(**inputs).logits[0].log_softmax(-1)
    expected = [float(logprobs[i, token_id]) for i, token_id in enumerate(prompt.ids[1:])]
    assert [entry[0] for entry in events[0].prompt[1:]] == pytest.approx(expected, abs=1e-4)


def test_no_native_kernels(open_vision: Open) -> None:
    with pytest.raises(ModelLoadError, match=r"option.kernels=native: they do not run models that take images"):
        open_vision("llava").open(kernels="native")


@pytest.mark.parametrize("name", PAGED)
def test_speculation_changes_nothing(name: str, open_vision: Open) -> None:
    vision = open_vision(name)
    batch = vision.open(speculative="ngram")
    requests = [("again and again and again ", picture(i), " again and again and") for i in range(3)]
    for number, parts in enumerate(requests):
        add(batch, number, vision.prompt(*parts), max_new_tokens=40)
    assert ids_at_the_end(batch) == {number: vision.generate(parts, 40) for number, parts in enumerate(requests)}
    assert batch.stats.draft_tokens > 0


@pytest.mark.parametrize("name", VISION_ARCHITECTURES)
def test_half_precision(name: str, open_vision: Open) -> None:
    """The processor's numbers are float32; the model's are not."""
    vision = open_vision(name)
    batch = vision.open(dtype="bf16")
    assert batch.takes_images
    assert ("KV cache" in batch.description) == (name in PAGED)
    add(batch, 1, vision.prompt("a ", picture(1)), max_new_tokens=5, ignore_eos=True)
    assert len(ids_at_the_end(batch)[1]) == 5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("name", VISION_ARCHITECTURES)
def test_on_a_gpu_greedy_ids_are_those_of_generate(
    name: str, open_vision: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    # torch's convolutions of fp32 multiply in TF32 there by default, and encoders begin with one.
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    vision = open_vision(name)
    batch = vision.open(device="cuda")
    requests = [(f"{i}: ", picture(i), " or ", picture(i + 1), "?") for i in range(6)]
    for number, parts in enumerate(requests):
        add(batch, number, vision.prompt(*parts), max_new_tokens=12)
    assert ids_at_the_end(batch) == {number: vision.generate(parts, 12) for number, parts in enumerate(requests)}
