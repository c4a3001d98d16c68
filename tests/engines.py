"""Engines for tests: a batch of a small checkpoint, in this process or behind a client; what transformers generates."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from djl_python.config import ModelConfig, Options, ServingSettings
from djl_python.core.engine_info import EngineStats
from djl_python.core.metrics import MetricFamily
from djl_python.core.types import TokenEvent
from djl_python.engine.batch.sequence import Sequence
from djl_python.engine.builtin.options import BuiltInOptions
from djl_python.engine.builtin.paged_batch import PagedRollingBatch
from djl_python.engine.client import EngineClient
from djl_python.engine.interface import RollingBatch
from djl_python.engine.settings import BuiltInSettings
from djl_python.text.tokens.tokenizer import Tokenizer
from djl_python.text.tokens.vocabulary import vocabulary_of
from tests.checkpoints import VOCABULARY


def open_batch(path: Path, **settings: Any) -> PagedRollingBatch:
    """A small batch of a checkpoint, on one thread."""
    defaults: dict[str, Any] = {"max_batch_size": 8, "max_prefill_tokens": 24, "kv_cache_memory_mb": 16, "threads": 1}
    batch = PagedRollingBatch(
        BuiltInSettings(model_path=str(path), **{**defaults, **settings}), lambda what, done, total: None
    )
    if (path / "tokenizer.json").is_file():
        batch.set_vocabulary(vocabulary_of(Tokenizer.load(path)))
    return batch


def reference_model(path: Path) -> Any:
    """transformers' own model of a checkpoint in fp32; one with soft caps has the attention that applies them."""
    caps = getattr(AutoConfig.from_pretrained(path).get_text_config(decoder=True), "attn_logit_softcapping", None)
    how = {"attn_implementation": "eager"} if caps else {}
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, **how)


def damage_(path: Path, token: int) -> Path:
    """Make the model's scores NaN wherever this token is in its text."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.no_grad():
        model.get_input_embeddings().weight[token] = float("nan")
    model.save_pretrained(path)
    return path


def step_tokens(batch: PagedRollingBatch) -> int:
    """Tokens that the last step computed."""
    return sum(chunk.length for chunk in batch.chunks)


def sequence_of(batch: PagedRollingBatch, request_id: int) -> Sequence:
    """The sequence of a request that the batch has."""
    running_or_waiting: list[Sequence] = [*batch.scheduler.running, *batch.scheduler.waiting]
    return next(sequence for sequence in running_or_waiting if sequence.id == request_id)


def run_to_end(batch: RollingBatch) -> dict[int, list[TokenEvent]]:
    """All events, by request."""
    events: dict[int, list[TokenEvent]] = {}
    while not batch.idle:
        for event in batch.step():
            events.setdefault(event.request_id, []).append(event)
    return events


def random_requests(count: int, seed: int) -> list[tuple[list[int], int]]:
    """(prompt, new tokens) of several lengths."""
    rng = random.Random(seed)
    return [
        ([rng.randrange(2, VOCABULARY) for _ in range(rng.choice([1, 3, 17, 40, 70]))], rng.choice([1, 2, 9, 30]))
        for _ in range(count)
    ]


def generate(model: Any, prompt: list[int], new_tokens: int) -> list[int]:
    """What transformers generates on its own."""
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens, do_sample=False, pad_token_id=0
    )
    return [int(i) for i in out[0, len(prompt) :]]


@torch.inference_mode()
def greedy(model: Any, prompt: list[int], ids: list[int], new_tokens: int) -> list[int]:
    """What transformers generates, if `ids` is that: its choice after each beginning of them, all in one pass.

    `generate` takes a pass for each token. Whatever else `ids` are, this isn't them: they go on or end elsewhere.
    """
    logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 :]
    choices = [int(i) for i in logits.argmax(-1)[:new_tokens]]
    end = model.generation_config.eos_token_id
    return choices[: choices.index(end) + 1] if end in choices else choices


class Listener:
    """What a handler would be: hears everything an engine says."""

    def __init__(self) -> None:
        self.progress: list[tuple[str, int, int]] = []
        self.stats: list[EngineStats] = []
        self.deaths: list[str] = []
        self.answers: list[bool] = []  # whether it answers, at each change
        self.metrics: list[MetricFamily] = []
        self.measured = asyncio.Event()
        self.died = asyncio.Event()
        self.told = asyncio.Event()  # after each step

    def _on_stats(self, stats: EngineStats) -> None:
        self.stats.append(stats)
        self.told.set()
        self.told = asyncio.Event()

    def _on_metrics(self, families: list[MetricFamily]) -> None:
        self.metrics = families
        self.measured.set()

    def on_death(self, message: str) -> None:
        self.deaths.append(message)
        self.died.set()

    async def open(
        self,
        path: Path,
        properties: dict[str, str] | None = None,
        cache_dir: str = "",
        engine_options: dict[str, Any] | None = None,
        heartbeat_timeout_s: float = 5.0,
        adapters: dict[str, str] | None = None,
        **options: Any,
    ) -> EngineClient:
        options = {"max_model_len": 128, "threads": 1, **options}
        own = {name: options.pop(name) for name in BuiltInOptions.__struct_fields__ if name in options}
        if options.get("rolling_batch", "auto") != "auto":
            own = engine_options or {}
        config = ModelConfig(
            name="m",
            path=str(path),
            option=Options(**options),
            serving=ServingSettings(heartbeat_timeout_s=heartbeat_timeout_s),
            engine_options=own,
            properties=properties or {},
            adapters=adapters or {},
            cache_dir=cache_dir,
        )
        return await EngineClient.open(
            config,
            path,
            progress=lambda *report: self.progress.append(report),
            on_stats=self._on_stats,
            on_death=self.on_death,
            on_metrics=self._on_metrics,
            on_answers=self.answers.append,
        )


class Sink:
    """Collects one sequence's events."""

    def __init__(self) -> None:
        self.events: list[TokenEvent] = []
        self.ended = asyncio.Event()
        self.begun = asyncio.Event()

    def __call__(self, event: TokenEvent) -> None:
        self.events.append(event)
        self.begun.set()
        if event.finish is not None or event.error is not None:
            self.ended.set()

    async def end(self) -> list[TokenEvent]:
        async with asyncio.timeout(120):
            await self.ended.wait()
        return self.events
