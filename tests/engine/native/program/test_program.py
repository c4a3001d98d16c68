"""The native program against transformers, number by number."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from djl_python.core.types import SamplingParams
from djl_python.engine.attention.lookup import PAGED
from djl_python.engine.batch.chunk import SequenceChunk
from djl_python.engine.batch.sequence import Sequence
from djl_python.engine.batch.state_slots import StateSlots
from djl_python.engine.checkpoints.rounding import Quantize
from djl_python.engine.native.program.builders import builder
from djl_python.engine.native.program.program import Program
from djl_python.engine.native.program.runner import NativeModelRunner, step_arrays
from djl_python.engine.reading.inference.decoder import read_recipe
from tests.checkpoints import NATIVE, OWN_ATTENTION, VOCABULARY, build_checkpoint, representative_first

BLOCK = 16
LENGTH = 90


def prompt(seed: int, length: int = LENGTH) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(VOCABULARY) for _ in range(length)]


def sequence(tokens: list[int], blocks: list[int], **params: Any) -> Sequence:
    entries: Any = [(None, ())] if params else []
    return Sequence(
        blocks[0],
        tokens,
        len(tokens),
        SamplingParams(max_new_tokens=1, **params),
        blocks=blocks,
        prompt_entries=entries,
    )


class Native:
    """A program and the model it was made of."""

    def __init__(
        self,
        path: Path,
        architecture: str,
        dtype: torch.dtype,
        threads: int,
        length: int = 256,
        quantize: Quantize | None = None,
    ) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(
            build_checkpoint(path, architecture, dtype), dtype=dtype
        ).eval()
        if architecture not in OWN_ATTENTION:
            self.model.set_attn_implementation(PAGED)
        recipe = read_recipe(self.model, length)
        states = StateSlots(8, 0) if recipe.state_bytes(dtype) else None
        self.program = Program(
            recipe,
            dtype,
            quantize,
            blocks=length // BLOCK,
            block_size=BLOCK,
            states=8,
            max_tokens=length,
            threads=threads,
        )
        self.runner = NativeModelRunner(self.program, BLOCK, states)
        if architecture not in OWN_ATTENTION:
            self.model.set_attn_implementation("eager")

    @torch.inference_mode()
    def reference(self, tokens: list[int]) -> Tensor:
        logits: Tensor = self.model(torch.tensor([tokens])).logits[0].float()
        return logits


@pytest.fixture(params=NATIVE)
def native(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Native]:
    made = Native(tmp_path, request.param, torch.float32, threads=2)
    yield made
    made.program.close()


def test_every_position_of_two_sequences_in_pieces(native: Native) -> None:
    """Prompts cut anywhere, two at a time, into blocks in any order, among values of a former owner."""
    native.program.cache.bytes.fill_(0xFF)  # not a number in any format
    rng = random.Random(4)
    pair = [
        sequence(prompt(1), [9, 2, 5, 11, 0, 3], prompt_logprobs=0),
        sequence(prompt(2, 70), [1, 8, 4, 6, 7], prompt_logprobs=0),
    ]
    rows: dict[int, list[Tensor]] = {one.id: [] for one in pair}
    while any(one.remaining for one in pair):
        chunks = [SequenceChunk(one, rng.randrange(1, min(40, one.remaining) + 1)) for one in pair if one.remaining]
        logits = native.runner.run(chunks)
        for chunk, piece in zip(chunks, torch.split(logits, [chunk.length for chunk in chunks]), strict=True):
            rows[chunk.sequence.id].append(piece.clone())
            chunk.sequence.computed += chunk.length
    for one in pair:
        expected = native.reference(one.tokens)
        assert torch.allclose(torch.cat(rows[one.id]), expected, atol=2e-4 * float(expected.abs().max()))


def test_a_step_without_wanted_logits_gives_none(native: Native) -> None:
    one = sequence(prompt(3, 20), [0, 1])
    assert native.runner.run([SequenceChunk(one, 10)]).shape == (0, VOCABULARY)


@pytest.mark.parametrize("quantize", [None, "int8"])
@pytest.mark.parametrize("architecture", ["llama", "gemma2"])  # one caps its logits
def test_the_head_tells_the_greatest_of_each_panel(
    architecture: str, quantize: Quantize | None, tmp_path: Path
) -> None:
    native = Native(tmp_path, architecture, torch.float32, threads=2, quantize=quantize)
    for rows in (9, 80):  # one step's logits have memory of their own
        one = sequence(prompt(7, rows), [0, 1, 2, 3, 4, 5], prompt_logprobs=0)
        logits = native.runner.run([SequenceChunk(one, rows)])
        expected = logits.reshape(rows, -1, 64).amax(-1)
        for first, last in ((0, rows), (3, 7)):
            address = native.program.maxima_of(logits[first:last])
            assert address is not None
            greatest = (ctypes.c_float * expected[first:last].numel()).from_address(address)
            assert list(greatest) == expected[first:last].flatten().tolist()
        assert native.program.maxima_of(logits.clone()) is None
        assert native.program.maxima_of(logits[1:].flatten()[1:]) is None
    native.program.close()


@pytest.mark.parametrize(("architecture", "threads"), [("llama", 1), ("llama", 3), ("qwen3_moe", 2), ("qwen3_moe", 5)])
def test_threads_make_no_difference(architecture: str, threads: int, tmp_path: Path) -> None:
    native = Native(tmp_path, architecture, torch.float32, threads)
    one = sequence(prompt(5), [0, 1, 2, 3, 4, 5])
    logits = []
    for _ in range(30):
        one.computed = 0
        for length in (LENGTH - 1, 1):
            made = native.runner.run([SequenceChunk(one, length)])
            one.computed += length
        logits.append(made.clone())
    assert all(torch.equal(logits[0], other) for other in logits)
    assert torch.allclose(logits[0][0], native.reference(one.tokens)[-1], atol=1e-3)
    native.program.close()


@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_rounded_activations_do_not_depend_on_threads(quantize: Quantize, tmp_path: Path) -> None:
    """Threads round what they have made: columns of products, and rows."""
    made = []
    for threads in (1, 2, 5):
        native = Native(tmp_path, "llama", torch.float32, threads, quantize=quantize)
        one = sequence(prompt(6, 90), [0, 1, 2, 3, 4, 5], prompt_logprobs=0)
        made.append(native.runner.run([SequenceChunk(one, 90)]).clone())
        native.program.close()
    assert all(torch.equal(made[0], other) for other in made)


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "qwen3_moe", "bloom"])
def test_many_keys_are_shared_out_and_make_no_difference(architecture: str, tmp_path: Path) -> None:
    """Alone, a long sequence's keys are cut for several threads: it is what it is among others, bit by bit."""
    length, others = 1300, 20
    logits = []
    for threads, beside in ((1, 0), (3, 0), (3, others)):
        native = Native(tmp_path, architecture, torch.float32, threads, 2560)
        one = sequence(prompt(8, length), list(range(length // BLOCK + 1)))
        few = [sequence(prompt(9 + i, 30), [100 + 2 * i, 101 + 2 * i]) for i in range(beside)]
        native.runner.run([SequenceChunk(one, length - 1)])
        one.computed = length - 1
        logits.append(native.runner.run([SequenceChunk(one, 1), *(SequenceChunk(each, 30) for each in few)])[0].clone())
        expected = native.reference(one.tokens)[-1]
        assert torch.allclose(logits[-1], expected, atol=2e-4 * float(expected.abs().max()))
        native.program.close()
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[0], logits[2])


@pytest.mark.parametrize(
    "architecture", ["llama", "gemma2", "qwen2_moe", "gpt_oss", "lfm2", "qwen3_5", "granite_h", "jamba"]
)
def test_a_bf16_prompt_is_the_same_in_whatever_pieces(architecture: str, tmp_path: Path) -> None:
    """Many queries share what is expanded of keys and values, few do it alone; states end every piece: bit by bit the
    same. Tiles add products in another order: where there are any, pieces have many rows and end where eight queries
    that attend together do, as the whole does."""
    native = Native(tmp_path, architecture, torch.bfloat16, threads=2)
    by_tiles = native.program.pool.vectors.endswith("AMX")
    if by_tiles and architecture in ("qwen2_moe", "gpt_oss", "jamba"):
        native.program.close()
        pytest.skip("of a long piece, too, an expert may have few rows")
    made = []
    for length in (LENGTH, 40, 16) if by_tiles else (LENGTH, 7, 1):
        one = sequence(prompt(6), [5, 0, 3, 1, 4, 2], prompt_logprobs=0)
        pieces = []
        while one.remaining:
            chunk = SequenceChunk(one, min(length, one.remaining))
            pieces.append(native.runner.run([chunk]).clone())
            one.computed += chunk.length
        made.append(torch.cat(pieces))
    native.program.close()
    assert torch.equal(made[0], made[1])
    assert torch.equal(made[0], made[2])


@pytest.mark.parametrize("architecture", NATIVE)
def test_bf16_is_as_near_to_fp32_as_transformers_is(architecture: str, tmp_path: Path) -> None:
    """Log-probabilities: mean absolute error at most 1.5 times that of transformers' own bf16, of half of the texts.

    In others, rounding may have chosen another expert for an early token, which all later ones see.
    """
    native = Native(tmp_path, architecture, torch.bfloat16, threads=1)
    texts = [sequence(prompt(seed), [0, 1, 2, 3, 4, 5], prompt_logprobs=0) for seed in range(6, 11)]
    ours = [native.runner.run([SequenceChunk(one, LENGTH)]).log_softmax(-1) for one in texts]
    theirs = [native.reference(one.tokens).log_softmax(-1) for one in texts]
    model = native.model.float()
    exact = [model(torch.tensor([one.tokens])).logits[0].detach().log_softmax(-1) for one in texts]
    own, other = (
        torch.stack([(a - b).abs().mean() for a, b in zip(each, exact, strict=True)]).median()
        for each in (ours, theirs)
    )
    assert own <= 1.5 * other
    native.program.close()


@pytest.mark.parametrize("architecture", representative_first())
def test_rows_lie_apart_where_the_cache_wants_it(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = []
    for way in (1 << 30, 4):  # no row is a multiple of that; each row is
        monkeypatch.setattr(builder, "L1_WAY_BYTES", way)
        native = Native(tmp_path, architecture, torch.float32, threads=1)
        one = sequence(prompt(5), [0, 1, 2, 3, 4, 5])
        made = []
        for length in (LENGTH - 1, 1):
            made.append(native.runner.run([SequenceChunk(one, length)]).clone())
            one.computed += length
        logits.append(torch.cat(made))
        native.program.close()
    assert torch.equal(logits[0], logits[1])


def test_memory_is_taken_as_blocks_are_used(tmp_path: Path) -> None:
    path = build_checkpoint(tmp_path, "llama")
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    model.set_attn_implementation(PAGED)
    before = _resident_bytes()
    program = Program(
        read_recipe(model, 128), torch.float32, blocks=200_000, block_size=BLOCK, max_tokens=64, threads=1
    )
    assert len(program.cache.bytes) > 2 << 30
    assert _resident_bytes() - before < 200 << 20
    program.close()


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def test_time_is_told_by_kind_of_operation(tmp_path: Path) -> None:
    native = Native(tmp_path, "llama", torch.float32, threads=2)
    assert set(native.runner.operator_seconds().values()) == {0.0}
    native.runner.run([SequenceChunk(sequence(prompt(5), [0, 1, 2, 3, 4, 5]), LENGTH)])
    spent = native.runner.operator_seconds()
    # No weight is rounded, no token drawn, fp32 is as it is; there are no experts, no states, nothing that torch runs.
    something = {"embed", "norm", "linear", "rope_kv_cache", "attention", "gather"}
    assert {kind for kind, seconds in spent.items() if seconds} == something
    native.program.close()


def test_arrays_have_the_types_that_the_kernels_read() -> None:
    other = sequence(prompt(8, 40), [5, 6, 7], prompt_logprobs=0)
    other.computed = 30
    unfinished = SequenceChunk(sequence(prompt(8, 40), [2, 4, 9]), 20)
    chunks = [SequenceChunk(sequence(prompt(7, 20), [3, 1]), 20), unfinished, SequenceChunk(other, 10)]
    arrays = step_arrays(chunks, block_size=BLOCK, tile=8, short_context=0)
    assert arrays.slots.tolist()[:20] == [*range(48, 64), *range(16, 20)]
    assert arrays.rows.tolist() == [19, *range(40, 50)]
    assert arrays.tokens.tile_start.tolist() == [0, 8, 16, 20, 28, 36, 40, 48]
    assert arrays.tokens.tile_size.tolist() == [8, 8, 4, 8, 8, 4, 8, 2]
    assert arrays.tokens.blocks.tolist() == [3, 1, 2, 4, 5, 6, 7]
    assert arrays.wanted.positions.tolist() == [19, *range(30, 40)]
    assert arrays.wanted.tile_start.tolist() == [0, 1, 9]
    assert arrays.wanted.tile_size.tolist() == [1, 8, 2]
    assert arrays.wanted.tile_table.tolist() == [0, 2, 2]
    assert arrays.wanted.blocks.tolist() == [3, 1, 5, 6, 7]
    wide = [getattr(arrays, name) for name in ("ids", "slots", "rows")]
    for places in (arrays.tokens, arrays.wanted):
        wide += [getattr(places, name) for name in ("positions", "tile_table", "blocks")]
        assert places.tile_start.dtype == places.tile_size.dtype == np.dtype(np.int32)
    assert {array.dtype for array in wide} == {np.dtype(np.int64)}


def test_a_row_is_the_same_whichever_others_are_wanted(native: Native) -> None:
    """The last layer works for wanted rows only: what it makes of one must not depend on where the others went."""

    def run(lengths: tuple[int, ...], **params: Any) -> Tensor:
        ones = [sequence(prompt(7, 60), [3, 1, 7, 2]), sequence(prompt(8), [0, 9, 4, 8, 5, 6], **params)]
        for one, length in zip(ones, lengths, strict=True):
            if length:
                one.computed = length
                native.runner.run([SequenceChunk(replace(one, computed=0), length)])
        return native.runner.run([SequenceChunk(one, one.remaining) for one in ones]).clone()

    few, many, pieces = run((0, 0)), run((0, 0), prompt_logprobs=0), run((59, 41))
    assert few.shape[0] == pieces.shape[0] == 2
    assert many.shape[0] == 1 + LENGTH
    assert torch.equal(few, many[[0, -1]])
    assert torch.equal(few, pieces)
