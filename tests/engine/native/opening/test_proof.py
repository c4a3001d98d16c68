"""A recipe is proved before it runs: right ones pass, and those that are wrong in one thing don't."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest
import torch

from djl_python.engine.checkpoints.loading import LoadedModel, can_page, load_model
from djl_python.engine.native.opening.proof import Proof, layers_to_see, prove
from djl_python.engine.reading.inference.decoder import read_recipe
from djl_python.engine.reading.recipe.decoder import Recipe
from djl_python.engine.reading.recipe.primitives import NotUnderstoodError
from djl_python.engine.runner.probe import Probe, ids_of_probe
from djl_python.engine.settings import BuiltInSettings
from tests.checkpoints import NATIVE, build_checkpoint, representative_first
from tests.engine.native.opening.mutants import mutants

THREADS = 1
_KEY_BIAS: Final = r"layers\.\d\.mixers\.0\.body\.projection\.parts\.1\.no bias"
#: Changes without effect, or with less than rounding has in fp32.
_SAME: Final = {
    # Without rotations, a bias of keys adds the same to all scores of a query.
    "opt": _KEY_BIAS,
    "opt_350m": _KEY_BIAS,
    "xglm": _KEY_BIAS,
    # What it is multiplied by is divided by in the norm after the attention.
    "gemma4": r"layers\.\d\.mixers\.0\.body\.value_norm\.weight plus one|layers\.\d\.token_branch\.mlp.*",
    "deepseek_v2": r".*groups\.ranked by others",  # no token of the text goes to other groups
}


def opened(path: Path, architecture: str, dtype: torch.dtype, sinks: bool) -> tuple[LoadedModel, Recipe, Probe]:
    checkpoint = build_checkpoint(path, architecture, dtype, sinks=sinks)
    loaded = load_model(BuiltInSettings(model_path=str(checkpoint), threads=THREADS), lambda *_: None)
    can_page(loaded)
    return loaded, read_recipe(loaded.model, 256), Probe.of(ids_of_probe(loaded, []), loaded.vocabulary)


@pytest.mark.parametrize("sinks", [pytest.param(False, marks=pytest.mark.slow), True], ids=["plain", "sinks"])
@pytest.mark.parametrize("architecture", NATIVE)
def test_a_recipe_as_read_passes_its_proof(architecture: str, sinks: bool, tmp_path: Path) -> None:
    loaded, recipe, probe = opened(tmp_path, architecture, torch.bfloat16, sinks)
    prove(recipe, loaded, probe, THREADS)


@torch.inference_mode()
@pytest.mark.parametrize("architecture", representative_first(representative=("llama", "lfm2")))
def test_a_recipe_with_a_single_mistake_fails_its_proof(architecture: str, tmp_path: Path) -> None:
    """In any format: the proof is in fp32, whatever is rounded after it."""
    loaded, recipe, probe = opened(tmp_path, architecture, torch.bfloat16, sinks=True)
    proof = Proof(loaded, probe, len(recipe.layers))
    passed, count = [], 0
    for count, (change, mutant) in enumerate(mutants(recipe), 1):  # noqa: B007
        try:
            proof.check(mutant, THREADS)
        except (NotUnderstoodError, RuntimeError, IndexError):  # of sizes that don't fit
            continue
        passed.append(change)
    assert count > 20
    # A tenth more of a factor may be less than what rounding does, in the last layer.
    small = [change for change in passed if change.endswith("times 1.1")]
    assert len(small) <= 1 + count // 50
    known = _SAME.get(architecture, "")
    assert [change for change in passed if change not in small and not re.fullmatch(known, change)] == []


def test_without_memory_nothing_is_proved_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loaded, recipe, probe = opened(tmp_path, "llama", torch.bfloat16, sinks=False)
    recipe.layers[1].parallel = True
    monkeypatch.setattr("djl_python.engine.native.opening.proof.available_bytes", lambda: 1000)
    prove(recipe, loaded, probe, THREADS)
    assert "not proved in fp32" in caplog.text


def test_of_a_large_model_only_so_many_layers_as_show_all_structures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, alike, _ = opened(tmp_path / "llama", "llama", torch.bfloat16, sinks=False)
    _, other, _ = opened(tmp_path / "gemma2", "gemma2", torch.bfloat16, sinks=False)  # every other layer has a window
    assert layers_to_see(alike) == layers_to_see(other) == 3
    monkeypatch.setattr("djl_python.engine.native.opening.proof.ALL_UP_TO", 0)
    assert (layers_to_see(alike), layers_to_see(other)) == (1, 2)
    alike.layers[2].parallel = True
    assert layers_to_see(alike) == 3


@pytest.mark.parametrize("architecture", ["llama", "bloom", "gemma2", "lfm2"])
def test_the_first_layers_of_a_model_are_proved_alone(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, recipe, probe = opened(tmp_path, architecture, torch.bfloat16, sinks=True)
    monkeypatch.setattr("djl_python.engine.native.opening.proof.ALL_UP_TO", 0)
    prove(recipe, loaded, probe, THREADS)
    recipe.layers[0].mixers[0].scale *= 1.1
    with pytest.raises(NotUnderstoodError, match="not the model's own"):
        prove(recipe, loaded, probe, THREADS)
