"""What a step computes: nobody is left out for long, and no step is empty."""

from __future__ import annotations

from djl_python.engine.kv_cache import BlockManager
from djl_python.engine.pacing import DECODE_ONLY_EVERY
from djl_python.engine.scheduler import STEPS_TO_TRUST, Chunk, Scheduler
from djl_python.engine.sequence import Sequence
from djl_python.types import SamplingParams

BLOCK = 16
PROMPT = 200


def scheduler(blocks: int = 64) -> Scheduler:
    return Scheduler(BlockManager(blocks, BLOCK), max_sequences=8, max_prefill_tokens=64)


def sequence(number: int, length: int) -> Sequence:
    tokens = [number * 1000 + i for i in range(length)]
    return Sequence(number, tokens, length, SamplingParams(max_new_tokens=500))


def run(made: Scheduler, drafts: int = 0) -> list[Chunk]:
    """One step, in which everybody who generates has that many drafts, all of them wrong."""
    chunks = [
        Chunk(chunk.sequence, chunk.length + drafts, (1,) * drafts) if chunk.sequence.remaining == 1 else chunk
        for chunk in made.schedule()
    ]
    made.learn(chunks, 0.01)
    made.advance(chunks)
    for chunk in chunks:
        if chunk.sequence.remaining == 0:
            chunk.sequence.tokens.append(7)
    return chunks


def test_prompts_are_read_beside_those_whose_every_step_has_drafts() -> None:
    made = scheduler()
    made.add(sequence(1, 10))
    run(made)
    waiting = sequence(2, PROMPT)
    made.add(waiting)
    for _ in range(PROMPT):
        run(made, drafts=3)
    assert waiting.remaining <= 1
    for number in range(3, 3 + DECODE_ONLY_EVERY):
        made.add(late := sequence(number, 20))
        for _ in range(3):
            run(made, drafts=3)
        assert late.computed
        made.remove(late)


def test_a_step_is_not_empty_because_the_one_that_generates_gives_way() -> None:
    made = scheduler(blocks=6)
    made.add(half_read := sequence(1, 90))
    run(made)
    assert half_read.computed == 64
    decoding = sequence(2, 2 * BLOCK + 1)
    made.blocks.extend(decoding, 2 * BLOCK)
    decoding.computed = 2 * BLOCK
    made.running.append(decoding)
    assert made.blocks.used == 6, "there is none left for its next token"
    assert made.pacer.budget(1) == 0
    assert run(made) == [Chunk(half_read, 26)]
    assert list(made.waiting) == [decoding]


def test_a_prompt_that_must_not_be_split_is_read_in_one_step() -> None:
    made = Scheduler(BlockManager(64, BLOCK), max_sequences=8, max_prefill_tokens=64, whole_prompts=True)
    made.add(decoding := sequence(1, 10))
    for _ in range(3):
        run(made)
    prompts = [sequence(number, PROMPT) for number in (2, 3)]
    for each in prompts:
        made.add(each)
    lengths = {
        each.id: [chunk.length for chunk in chunks if chunk.sequence is each and chunk.length > 1]
        for chunks in [[chunk for _ in range(4) for chunk in run(made)]]
        for each in prompts
    }
    assert lengths == {2: [PROMPT], 3: [PROMPT]}
    assert decoding.generated == 3 + 4, "and who generates goes on in every step"


def test_after_memory_ran_out_more_sequences_are_tried_again_by_and_by() -> None:
    made = scheduler(blocks=4 * (STEPS_TO_TRUST + 20) // BLOCK)
    for number in range(4):
        made.add(sequence(number, 10))
    chunks = made.schedule()
    assert made.relieve(chunks, repeatable=True) is None
    assert ([each.id for each in made.running], [each.id for each in made.waiting]) == ([0, 1, 2], [3])
    assert len(run(made)) == 3
    for _ in range(STEPS_TO_TRUST):
        run(made)
    assert len(run(made)) == 4
