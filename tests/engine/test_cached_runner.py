"""Sequences over transformers' own cache, however the scheduler cuts their prompts."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from djl_python.types import SamplingParams
from tests.checkpoints import build_checkpoint
from tests.engine.test_paged_batch import generate, open_batch, run_to_end


def test_prompts_that_do_not_fit_one_step_together(tmp_path: Path) -> None:
    """The budget of a step is the context's length: of three prompts at once, the second is cut."""
    path = build_checkpoint(tmp_path, "bloom")
    batch = open_batch(path, max_model_len=64)
    prompts = [[2 + (7 * i + number) % 300 for i in range(40)] for number in range(3)]
    for number, prompt in enumerate(prompts):
        batch.add(number, prompt, SamplingParams(max_new_tokens=9))
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    expected = {number: generate(model, prompt, 9) for number, prompt in enumerate(prompts)}
    assert {number: [e.token_id for e in events] for number, events in run_to_end(batch).items()} == expected
