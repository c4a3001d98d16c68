"""Checkpoints as GPTQ, AWQ and compressed-tensors write them, made of others by plain rounding.

Packing follows what their libraries document, with numpy's bits, not with the code that reads it.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

# In the order in which AWQ writes eight outputs into a word.
_INTERLEAVED = [0, 2, 4, 6, 1, 3, 5, 7]


@dataclass(frozen=True)
class Method:
    """How weights are rounded and written.

    Attributes:
        layout: "gptq", "gptq_v2", "gemm" (AWQ's) or "pack-quantized" (compressed-tensors').
        act_order: inputs belong to groups in disorder.
        symmetric: the code of 0 is the one in the middle.
        auto_round: AutoRound wrote it.
    """

    layout: str
    bits: int = 4
    group_size: int = 64
    act_order: bool = False
    symmetric: bool = False
    scales: torch.dtype = torch.float16
    auto_round: bool = False

    @property
    def name(self) -> str:
        if self.auto_round:
            return "auto-round"
        return {"gemm": "awq", "pack-quantized": "compressed-tensors"}.get(self.layout, "gptq")

    @property
    def configuration(self) -> dict[str, object]:
        """What stands in config.json."""
        if self.name == "compressed-tensors":
            grouped = self.group_size > 0
            weights = {
                "num_bits": self.bits,
                "type": "int",
                "symmetric": self.symmetric,
                "strategy": "group" if grouped else "channel",
                "group_size": self.group_size if grouped else None,
                "actorder": "group" if self.act_order else None,
            }
            scheme = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
            groups = {"config_groups": {"group_0": scheme}, "ignore": ["lm_head"], "kv_cache_scheme": None}
            how = {"format": self.layout, "quantization_status": "compressed"}
            return {"quant_method": self.name, **how, **groups}
        said: dict[str, object] = {"quant_method": self.name, "bits": self.bits, "group_size": self.group_size}
        if self.auto_round:
            packing = {"gptq": "auto_round:auto_gptq", "gptq_v2": "auto_round", "gemm": "auto_round:auto_awq"}
            more = {"data_type": "int", "act_bits": 16, "autoround_version": "0.16.1"}
            return {**said, **more, "sym": self.symmetric, "packing_format": packing[self.layout]}
        if self.name == "awq":
            return {**said, "version": "gemm", "zero_point": True, "modules_to_not_convert": None}
        return {**said, "checkpoint_format": self.layout, "desc_act": self.act_order, "sym": self.symmetric}


def rounded(weight: Tensor, method: Method) -> tuple[dict[str, Tensor], Tensor]:
    """(the tensors of a weight (n, k), what they stand for (n, k) fp32)."""
    n, k = weight.shape
    size = method.group_size if method.group_size > 0 else k
    groups = -(-k // size)
    group = torch.arange(k) // size
    if method.act_order:
        group = group[torch.randperm(k, generator=torch.Generator().manual_seed(k))]
    most = 2**method.bits - 1
    scales, zeros = torch.empty(n, groups), torch.empty(n, groups)
    for g in range(groups):
        low, high = weight[:, group == g].float().aminmax(dim=1)
        if method.symmetric:
            scales[:, g] = torch.maximum(-low, high) * 2 / most
            zeros[:, g] = 2 ** (method.bits - 1)
        else:
            scales[:, g] = ((high.clamp_min(0) - low.clamp_max(0)) / most).clamp_min(1e-4)
            # In GPTQ's first format, a zero of 0 would borrow from the next.
            zeros[:, g] = (-low / scales[:, g]).round().clamp(1, most)
    scales = scales.to(method.scales).float()
    codes = (weight.float() / scales[:, group] + zeros[:, group]).round().clamp(0, most)
    stands_for = (codes - zeros[:, group]) * scales[:, group]
    if method.name == "compressed-tensors":
        tensors = {"weight_packed": _packed(codes, method.bits), "weight_scale": scales.to(method.scales)}
        tensors["weight_shape"] = torch.tensor(weight.shape)
        if not method.symmetric:
            tensors["weight_zero_point"] = _packed(zeros.T, method.bits).T.contiguous()
        if method.act_order:
            tensors["weight_g_idx"] = group.int()
        return tensors, stands_for
    tensors = {"scales": scales.T.contiguous().to(method.scales)}
    if method.layout == "gemm":
        tensors["qweight"] = _packed(_interleaved(codes.T), 4)
        tensors["qzeros"] = _packed(_interleaved(zeros.T), 4)
    else:
        less = 1 if method.layout == "gptq" else 0
        tensors["qweight"] = _packed(codes, method.bits).T.contiguous()
        tensors["qzeros"] = _packed((zeros - less).T, method.bits)
        if not method.auto_round:
            tensors["g_idx"] = group.int()
    return tensors, stands_for


def write_quantized(source: Path, path: Path, method: Method, *, transposed: bool = False) -> Path:
    """Round a checkpoint's linears, all but the head and routers. Beside it lies `dense`, with the same numbers.

    Args:
        transposed: its linears are (in, out).
    """
    dense = path / "dense"
    shutil.copytree(source, path)
    shutil.copytree(source, dense)
    tensors = load_file(source / "model.safetensors")
    quantized, plain = {}, {}
    for name, tensor in tensors.items():
        plain[name] = quantized[name] = tensor
        if not is_linear(name, tensor):
            continue
        del quantized[name]
        made, stands_for = rounded(tensor.T if transposed else tensor, method)
        plain[name] = (stands_for.T if transposed else stands_for).contiguous().to(tensor.dtype)
        quantized.update({f"{name.removesuffix('weight')}{part}": value for part, value in made.items()})
    save_file(plain, dense / "model.safetensors", {"format": "pt"})
    save_file(quantized, path / "model.safetensors", {"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "quantization_config": method.configuration}))
    return path


def is_linear(name: str, tensor: Tensor) -> bool:
    """Whether a tensor of a checkpoint is what is rounded."""
    kept = ("embed", "lm_head", "mlp.gate.weight", "wte", "wpe", "shared_expert_gate")
    return name.endswith(".weight") and tensor.dim() == 2 and not any(part in name for part in kept)


def _interleaved(codes: Tensor) -> Tensor:
    return codes.view(len(codes), -1, 8)[:, :, _INTERLEAVED].flatten(1)


def _packed(codes: Tensor, bits: int) -> Tensor:
    """(rows, codes) to (rows, words) int32, the lowest bits of a word first."""
    numbers = codes.to(torch.uint8).numpy()
    spread = np.unpackbits(numbers[:, :, None], axis=2, count=bits, bitorder="little").reshape(len(numbers), -1)
    padded = np.pad(spread, ((0, 0), (0, -spread.shape[1] % 32)))
    return torch.from_numpy(np.packbits(padded, axis=1, bitorder="little").view(np.int32).copy())
