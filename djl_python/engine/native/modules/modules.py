"""Native modules in place of a model's own, for models whose other parts torch runs. Engine process, once."""

from __future__ import annotations

import torch
from torch import nn

from ...checkpoints.module_tree import child_modules
from ...checkpoints.quantization import Quantize, finer
from .linears import NativeLinears
from .mlps import NativeMlp, as_mlp
from .norms import NativeNorm


@torch.inference_mode()
def replace_mlps_(model: nn.Module, linears: NativeLinears, quantize: Quantize | None) -> None:
    """Replace every MLP that the kernels support, its weights quantized if asked for."""
    for parent, name, module in child_modules(model):
        if (mlp := as_mlp(module)) is None:
            continue
        up = linears.packed([mlp.up] if mlp.gate is None else [mlp.gate, mlp.up], quantize)
        down = linears.packed([mlp.down], finer(quantize))
        if up is not None and down is not None:
            setattr(parent, name, NativeMlp(mlp, up, down, linears.pool, linears.dtype))


@torch.inference_mode()
def replace_norms_(model: nn.Module, linears: NativeLinears) -> None:
    """Replace every norm that the kernels support."""
    pools = linears.pool, linears.alone
    for parent, name, module in child_modules(model):
        if not isinstance(parent, NativeNorm) and (norm := NativeNorm.of(module, linears.dtype, pools)) is not None:
            setattr(parent, name, norm)
