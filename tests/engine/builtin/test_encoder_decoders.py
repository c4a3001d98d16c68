"""The oracle: what encoder-decoder models generate under continuous batching is what `model.generate` generates."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from djl_python.core.errors import ModelLoadError, ParameterError
from djl_python.core.sequence_request import SequenceRequest
from djl_python.core.types import FinishReason, SamplingParams, TokenEvent
from djl_python.engine.builtin.paged_batch import PagedRollingBatch
from djl_python.engine.torch_backend.encoder_decoder.runner import EncoderDecoderRunner
from tests.checkpoints import build_checkpoint
from tests.encoder_decoders import (
    ARCHITECTURES,
    EOS,
    LACKING,
    VOCABULARY,
    build_encoder_decoder,
    generate,
    generated_ids,
    reference_of,
    requested,
)
from tests.engines import open_batch, run_to_end


def start_of(batch: PagedRollingBatch) -> tuple[int, ...]:
    assert batch.decoder is not None
    return batch.decoder.start_ids


def prompts(count: int, seed: int) -> list[tuple[list[int], int]]:
    """(prompt, new tokens) of several lengths, without tokens that have a meaning."""
    rng = random.Random(seed)
    return [
        ([rng.randrange(10, VOCABULARY) for _ in range(rng.choice([1, 3, 16, 17, 45]))], rng.choice([1, 2, 9, 30]))
        for _ in range(count)
    ]


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES.keys() - LACKING))
def test_greedy_ids_and_log_probabilities_are_those_of_generate_whatever_the_schedule(
    architecture: str, tmp_path: Path
) -> None:
    path = build_encoder_decoder(tmp_path, architecture)
    batch = open_batch(path, max_batch_size=4)
    model = reference_of(path)
    asked = prompts(10, seed=3)
    rng = random.Random(11)
    got: dict[int, list[TokenEvent]] = {i: [] for i in range(len(asked))}
    waiting = list(enumerate(asked))
    while waiting or not batch.idle:
        for _ in range(rng.choice([0, 0, 1, 4])):
            if waiting:
                index, (prompt, new_tokens) = waiting.pop(0)
                batch.add(requested(start_of(batch), prompt, index, max_new_tokens=new_tokens))
        if not batch.idle:
            for event in batch.step():
                got[event.request_id].append(event)
    for index, (prompt, new_tokens) in enumerate(asked):
        made = generate(model, prompt, new_tokens)
        assert [event.token_id for event in got[index]] == generated_ids(model, made), index
        logits = made.logits[len(start_of(batch)) - 1 :]
        for event, row in zip(got[index], logits, strict=True):
            if event.logprob != 0.0:  # else it was forced
                assert event.logprob == pytest.approx(float(row[0].log_softmax(-1)[event.token_id]), abs=2e-3)
    assert batch.stats.kv_blocks_used == batch.stats.running == batch.stats.waiting == 0


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_encoder_decoder(tmp_path_factory.mktemp("pegasus"), "pegasus")


def test_a_text_at_its_limit_ends_with_the_token_that_is_forced(tmp_path: Path) -> None:
    batch = open_batch(build_encoder_decoder(tmp_path, "bart", seed=2))
    batch.add(requested(start_of(batch), [20, 30], 1, max_new_tokens=3, bad_words_ids=((EOS,),)))
    events = run_to_end(batch)[1]
    assert (events[-1].token_id, events[-1].logprob, events[-1].finish) == (EOS, 0.0, FinishReason.LENGTH)
    batch.add(requested(start_of(batch), [20, 30], 2, max_new_tokens=3, ignore_eos=True, bad_words_ids=((EOS,),)))
    assert run_to_end(batch)[2][-1].token_id != EOS


def test_sequences_of_one_prompt_share_what_their_encoder_has_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    encode = EncoderDecoderRunner.encode

    def counted(runner: EncoderDecoderRunner, chunks: list[Any]) -> torch.Tensor:
        read.extend(chunk.sequence.encoder_length for chunk in chunks)
        return encode(runner, chunks)

    batch = open_batch(path)
    monkeypatch.setattr(EncoderDecoderRunner, "encode", counted)
    prompt = list(range(10, 50))
    batch.add(requested(start_of(batch), prompt, 1, max_new_tokens=20, ignore_eos=True))
    ids: dict[int, list[int]] = {1: [event.token_id for event in batch.step()], 2: [], 3: [], 4: []}
    for number in (2, 3):
        batch.add(requested(start_of(batch), prompt, number, max_new_tokens=20, ignore_eos=True))
    batch.add(requested(start_of(batch), prompt[:-1], 4, max_new_tokens=20, ignore_eos=True))
    cached: dict[int, int | None] = {}
    while not {2, 3, 4} <= cached.keys():  # a step may be of decode alone
        for event in batch.step():
            cached.setdefault(event.request_id, event.cached_tokens)
            ids[event.request_id].append(event.token_id)
    used = batch.stats.kv_blocks_used
    events = run_to_end(batch)
    assert read == [40, 39]
    assert used == 3 + 3 + 4  # of two encoded texts, and of four decoded ones
    for number in events:
        ids[number] += [event.token_id for event in events[number]]
    assert ids[1] == ids[2] == ids[3]
    assert (cached[2], cached[3], cached[4]) == (40, 40, 0) and batch.stats.kv_blocks_used == 0


def test_texts_of_about_the_same_length_are_encoded_in_one_run(path: Path) -> None:
    batch, model = open_batch(path, max_prefill_tokens=512), reference_of(path)
    runs: list[tuple[int, ...]] = []
    encoder = batch.runner.model.get_encoder()  # type: ignore[attr-defined]
    encoder.register_forward_pre_hook(
        lambda module, args, given: runs.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    asked = [[10 + number] * length for number, length in enumerate((30, 45, 33, 40, 7, 1))]
    for number, prompt in enumerate(asked):
        batch.add(requested(start_of(batch), prompt, number, max_new_tokens=6, ignore_eos=True))
    events = run_to_end(batch)
    assert sorted(runs) == [(2, 7), (2, 33), (2, 45)]
    for number, prompt in enumerate(asked):
        expected = [int(token) for token in generate(model, prompt, 6).sequences[0][1:]]
        assert [event.token_id for event in events[number]][: len(expected)] == expected


def test_a_preempted_sequence_is_read_again_and_goes_on_as_before(path: Path) -> None:
    asked = [([10 + i] * 20, 40) for i in range(4)]
    runs = []
    for blocks in (None, 14):
        batch = open_batch(path, kv_blocks=blocks, max_model_len=64)
        for number, (prompt, new_tokens) in enumerate(asked):
            batch.add(requested(start_of(batch), prompt, number, max_new_tokens=new_tokens, ignore_eos=True))
        runs.append({n: [event.token_id for event in events] for n, events in run_to_end(batch).items()})
    assert batch.stats.preemptions > 0
    assert runs[0] == runs[1]


def test_a_cancelled_sequence_leaves_its_blocks(path: Path) -> None:
    batch = open_batch(path)
    for number in (1, 2):
        batch.add(requested(start_of(batch), [number + 10] * 33, number, max_new_tokens=50, ignore_eos=True))
    batch.step()
    batch.cancel(1)
    assert {event.request_id for event in batch.step()} == {2}
    batch.cancel(2)
    assert batch.idle and batch.stats.kv_blocks_used == 0


def test_a_penalty_is_for_what_the_decoder_has_written(path: Path) -> None:
    batch, model = open_batch(path, max_prefill_tokens=512), reference_of(path)
    prompt = list(range(10, 31))
    batch.add(requested(start_of(batch), prompt, 1, max_new_tokens=25, repetition_penalty=1.7))
    made = generate(model, prompt, 25, repetition_penalty=1.7)
    assert [event.token_id for event in run_to_end(batch)[1]] == generated_ids(model, made)


def test_a_request_that_can_never_be_generated_is_refused(path: Path) -> None:
    batch = open_batch(path, max_model_len=32)
    start = start_of(batch)
    for prompt in ([], [10] * 33, [VOCABULARY]):
        with pytest.raises(ParameterError):
            batch.add(requested(start, prompt, 1, max_new_tokens=1))
    with pytest.raises(ParameterError, match="no log-probabilities"):
        batch.add(requested(start, [10], 1, max_new_tokens=1, prompt_logprobs=0))
    batch.add(requested(start, [10] * 32, 1, max_new_tokens=1000, ignore_eos=True))
    assert len(run_to_end(batch)[1]) == 31  # the encoder's tokens are not the decoder's
    with pytest.raises(ModelLoadError, match=r"quantize=int8: the model is an encoder-decoder"):
        open_batch(path, quantize="int8")


def test_a_decoder_alone_has_no_encoder(tmp_path: Path) -> None:
    batch = open_batch(build_checkpoint(tmp_path, "llama"))
    with pytest.raises(ParameterError, match="no encoder"):
        batch.add(SequenceRequest([5], SamplingParams(max_new_tokens=1), encoder_ids=[6]))


@pytest.mark.skipif(not LACKING, reason="this release of transformers has T5's attention looked up by name")
def test_a_model_with_its_own_attention_is_refused_with_what_serves_it(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"with option\.rolling_batch=disable it is served"):
        open_batch(build_encoder_decoder(tmp_path, "t5"))
