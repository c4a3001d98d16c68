"""Models of all kinds that two processes share: what each computes, and how far that is from the model alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from djl_python.core.errors import ModelLoadError
from djl_python.core.types import SamplingParams
from djl_python.engine.batch.chunk import SequenceChunk
from djl_python.engine.batch.sequence import Sequence
from djl_python.engine.devices.pipeline_parallel import end_probes
from djl_python.engine.devices.tensor_parallel import join, least, settings_of
from djl_python.engine.opening.open_model import open_model
from djl_python.engine.runner.opened_model import OpenedModel
from djl_python.engine.runner.probe_steps import probe_step
from djl_python.engine.settings import BuiltInSettings
from djl_python.engine.torch_backend.paged_runner import PagedModelRunner
from tests.checkpoints import NATIVE, VOCABULARY, build_checkpoint

PROMPT = [(5 * place + 2) % VOCABULARY for place in range(40)]


def shareable(tmp_path: Path, check: Callable[[Path], object]) -> list[Path]:
    """Checkpoints of all kinds that `check` does not refuse."""
    checkpoints = []
    for name, config in NATIVE.items():
        config().save_pretrained(tmp_path / name)
        try:
            check(tmp_path / name)
        except ModelLoadError:
            continue
        checkpoints.append(build_checkpoint(tmp_path / name, name, sinks=True))
    return checkpoints


def computed(
    rank: int, folder: Path, checkpoints: list[Path], **degree: Any
) -> Iterator[tuple[Path, OpenedModel, Tensor]]:
    """In one of two processes: each model, and its logits after the prompt, which is read in two pieces."""
    torch.set_num_threads(1)
    for number, path in enumerate(checkpoints):
        mine = settings_of(
            rank,
            BuiltInSettings(
                model_path=str(path), device="cpu", dtype="fp32", kv_cache_memory_mb=4 + 4 * rank, **degree
            ),
        )
        if number == 0:
            join(rank, mine, folder / "meeting")
        opened = open_model(mine, lambda what, done, total: None)
        end_probes(opened.loaded.model)
        assert isinstance(opened.runner, PagedModelRunner) and opened.memory.share_prefixes, opened.description
        sequence = Sequence(1, PROMPT, len(PROMPT), SamplingParams(max_new_tokens=1), blocks=[1, 2, 3])
        probe_step(opened.runner, SequenceChunk(sequence, 17))
        logits = probe_step(opened.runner, SequenceChunk(sequence, 23))[-1]
        assert least(opened.memory.kv_blocks, opened.loaded.device) == opened.memory.kv_blocks
        yield path, opened, logits


def note_error(folder: Path, path: Path, logits: Tensor, alone: Any) -> None:
    """Write how far the logits are from those of the model alone, of its greatest, for `errors`."""
    with torch.inference_mode():
        expected = alone(input_ids=torch.tensor([PROMPT])).logits[0, -1]
    (folder / path.name).write_text(str(float((logits - expected).abs().max() / expected.abs().max())))


def errors(
    tmp_path: Path, compute: Callable[[int, Path, list[Path]], None], checkpoints: list[Path]
) -> dict[str, float]:
    """What `compute` notes of each model, run in two processes."""
    made = tmp_path / "made"
    made.mkdir()
    spawn(compute, (made, checkpoints), nprocs=2)  # type: ignore[no-untyped-call]
    return {path.name: float((made / path.name).read_text()) for path in checkpoints}
