"""Checkpoints of GPTQ and AWQ run as what they stand for, on every way to run a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from djl_python.core.errors import ModelLoadError
from djl_python.core.sequence_request import SequenceRequest
from djl_python.core.types import SamplingParams
from djl_python.engine.checkpoints.dequantizing_linear import DequantizingLinear
from djl_python.engine.checkpoints.expert_stacks import stacks_of, unpack_experts_
from djl_python.engine.checkpoints.loading import load_model
from djl_python.engine.native.library import library
from djl_python.engine.settings import BuiltInSettings
from tests.checkpoints import build_checkpoint
from tests.engines import open_batch, run_to_end
from tests.kernels import kernels_or_skip
from tests.quantized_checkpoints import Method, write_quantized

PROMPT = list(range(3, 60))
GPTQ, AWQ, COMPRESSED = Method("gptq", symmetric=True), Method("gemm"), Method("pack-quantized")
CASES = [
    ("llama", GPTQ),
    ("llama", AWQ),
    ("llama", Method("gptq", 8)),
    ("llama", Method("gptq", act_order=True)),
    ("llama", Method("gptq_v2", 3, 32)),
    ("qwen2", AWQ),  # biases
    ("gpt_neox", GPTQ),  # queries, keys and values in one, head by head
    ("gpt2", Method("gptq")),  # linears the other way round
    ("qwen3_moe", AWQ),  # experts, which transformers stacks
    ("llama", COMPRESSED),
    ("llama", Method("pack-quantized", 8, -1, symmetric=True)),
    ("qwen3_moe", COMPRESSED),
    ("qwen2_moe", Method("gptq", act_order=True)),
    ("llama", Method("gptq", symmetric=True, auto_round=True)),
    ("qwen2", Method("gptq_v2", 4, 32, auto_round=True)),
    ("llama", Method("gemm", auto_round=True)),
]


def quantized(tmp_path: Path, architecture: str, method: Method) -> Path:
    source = build_checkpoint(tmp_path / "source", architecture)
    return write_quantized(source, tmp_path / "quantized", method, transposed=architecture == "gpt2")


@torch.inference_mode()
def logits_of(path: Path) -> Tensor:
    """transformers' own, of a checkpoint of numbers."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    logits: Tensor = model(torch.tensor([PROMPT])).logits[0, -1]
    return logits


def generated(path: Path, **settings: str) -> tuple[list[int], str]:
    batch = open_batch(path, **settings)
    batch.add(SequenceRequest(PROMPT, SamplingParams(max_new_tokens=8, ignore_eos=True), id=0))
    events = run_to_end(batch)[0]
    return [event.token_id for event in events], batch.description


@pytest.mark.parametrize("kernels", ["native", "torch"])
@pytest.mark.parametrize(("architecture", "method"), CASES, ids=str)
def test_the_engine_runs_quantized_checkpoints(tmp_path: Path, architecture: str, method: Method, kernels: str) -> None:
    if kernels == "native":
        kernels_or_skip(library)
    path = quantized(tmp_path, architecture, method)
    logits = logits_of(path / "dense")
    asked = {"quantize": method.name} if method.name in ("gptq", "awq") else {}
    ids, how = generated(path, kernels=kernels, dtype="fp32", **asked)
    assert f"with {method.name} weights" in how
    assert ("native kernels" in how) == (kernels == "native")
    # What is multiplied is rounded too, to 8 bits or bf16: among tokens as good as equal that may decide.
    assert logits[ids[0]] > logits.max() - 0.1 * logits.std()


@pytest.mark.parametrize("method", [GPTQ, AWQ, COMPRESSED], ids=str)
def test_loaded_linears_compute_what_they_stand_for(tmp_path: Path, method: Method) -> None:
    path = quantized(tmp_path, "llama", method)
    loaded = load_model(BuiltInSettings(model_path=str(path), dtype="fp32"), lambda *_: None)
    linears = [module for module in loaded.model.modules() if isinstance(module, DequantizingLinear)]
    assert len(linears) == 3 * 7
    assert loaded.method == method.name
    with torch.inference_mode():
        logits = loaded.model(torch.tensor([PROMPT])).logits[0, -1]
    assert torch.allclose(logits, logits_of(path / "dense"), atol=1e-4)


@pytest.mark.parametrize("architecture", ["qwen3_moe", "qwen2_moe", "glm4_moe"])
def test_experts_stay_codes_until_torch_wants_numbers(tmp_path: Path, architecture: str) -> None:
    path = quantized(tmp_path, architecture, Method("gemm", group_size=32))
    loaded = load_model(BuiltInSettings(model_path=str(path), dtype="fp32"), lambda *_: None)
    logits = logits_of(path / "dense")
    stacks = [stacks for module in loaded.model.modules() if (stacks := stacks_of(module))]
    assert [sorted(each) for each in stacks] == [["down_proj", "gate_up_proj"]] * (
        3 if architecture == "qwen2_moe" else 2
    )
    for _ in range(2):
        with torch.inference_mode():
            assert torch.allclose(loaded.model(torch.tensor([PROMPT])).logits[0, -1], logits, atol=1e-4)
        unpack_experts_(loaded.model, loaded.device)
    assert not any(map(stacks_of, loaded.model.modules()))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("method", [GPTQ, AWQ, COMPRESSED], ids=str)
def test_a_gpu_without_the_libraries_gets_numbers(
    tmp_path: Path, method: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda *_: None)
    path = quantized(tmp_path, "llama", method)
    loaded = load_model(BuiltInSettings(model_path=str(path), dtype="fp32", device="cuda"), lambda *_: None)
    assert loaded.method is None
    with torch.inference_mode():
        logits = loaded.model(torch.tensor([PROMPT], device="cuda")).logits[0, -1].cpu()
    assert torch.allclose(logits, logits_of(path / "dense"), atol=1e-3)


def test_missing_weights_are_named(tmp_path: Path) -> None:
    path = quantized(tmp_path, "llama", AWQ)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 4}))
    with pytest.raises(
        ModelLoadError, match=r"awq without \d+ of the weights that LlamaForCausalLM needs: .*layers\.3\."
    ):
        open_batch(path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"version": "gemv"}, "awq with 4 bits in the layout 'gemv'"), ({"bits": 3}, "awq with 3 bits")],
)
def test_an_unsupported_quantization_names_a_library_for_it(
    tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    path = quantized(tmp_path, "llama", AWQ)
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"].update(changes)
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match=f"{said}.* is read with gptqmodel: pip"):
        open_batch(path)


def test_rotated_activations_are_not_read(tmp_path: Path) -> None:
    path = quantized(tmp_path, "llama", Method("pack-quantized"))
    config = json.loads((path / "config.json").read_text())
    apply = [{"targets": ["Linear"], "location": "weight_input", "inverse": True, "ignore": []}]
    rotation = {"type": "hadamard", "apply": apply, "randomize": False}
    config["quantization_config"]["transform_config"] = {"config_groups": {"u": rotation, "v": {"type": "hadamard"}}}
    (path / "config.json").write_text(json.dumps(config))
    assert load_model(BuiltInSettings(model_path=str(path)), lambda *_: None)
    apply.append({"targets": ["Linear"], "location": "input", "inverse": False, "ignore": []})
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match="is read with compressed-tensors: pip"):
        load_model(BuiltInSettings(model_path=str(path)), lambda *_: None)


@pytest.mark.parametrize("what", ["strategy", "sparsity"])
def test_compressed_tensors_of_other_shapes_are_not_read(tmp_path: Path, what: str) -> None:
    """One scale for a whole weight, or weights of which zeros are left out."""
    path = quantized(tmp_path, "llama", Method("pack-quantized"))
    config = json.loads((path / "config.json").read_text())
    said = config["quantization_config"]
    if what == "strategy":
        (scheme,) = said["config_groups"].values()
        scheme["weights"]["strategy"] = "tensor"
    else:
        said["sparsity_config"] = {"format": "sparse-24-bitmask"}
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match="is read with compressed-tensors: pip"):
        load_model(BuiltInSettings(model_path=str(path)), lambda *_: None)


@pytest.mark.parametrize("key", ["rotation_config", "spinquant_config"])
def test_rotations_of_auto_round_are_not_read(tmp_path: Path, key: str) -> None:
    path = quantized(tmp_path, "llama", Method("gptq", symmetric=True, auto_round=True))
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"][key] = {"algorithm": "spinquant", "r1": True, "online_r1_rotation": True}
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match="is read with auto-round: pip"):
        load_model(BuiltInSettings(model_path=str(path)), lambda *_: None)
