"""Replaces a model's linears, where torch runs it: by integer weights on torch's kernels, or by the native kernels.

Engine process, once. Weights that a checkpoint holds as codes are never rounded again. Routers and other modules that
only inherit from a linear are left as they are, and so are stacked weights of experts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn

from ..checkpoints.linears import Linear, as_linear, child_modules
from ..checkpoints.quantization import Codes, quantized
from ..checkpoints.rounding import Quantize, Rounding

log = logging.getLogger(__name__)

# With more rows than this, dequantizing an 8-bit weight costs less than the fp32 product saves.
_FEW_ROWS: Final = 32
# Columns that torch's 4-bit kernel takes at a time.
_COLUMNS: Final = 16
# Share of matrices' numbers that is not worth telling about: routers, decays. And how many names are told.
_SMALL: Final = 0.01
_NAMED: Final = 3


@torch.inference_mode()
def replace_linears_(
    model: Any, quantize: Quantize | None, make: Callable[[Linear, Rounding | None], nn.Module | None]
) -> None:
    """Replace every linear by the module that `make` returns for it, if any; the lm_head gets 8 bits at least.

    An embedding tied to the lm_head is rounded with it, so that the text is the same as with the native program.
    """
    head = model.get_output_embeddings()
    for parent, name, module in child_modules(model):
        linear = as_linear(module)
        if linear is None:
            continue
        rounding: Rounding | None = "int8" if quantize is not None and module is head else quantize
        if (made := make(linear, rounding)) is None:
            continue
        setattr(parent, name, made)
        if rounding is not None and module is head:
            embedding = model.get_input_embeddings().weight
            if linear.numbers.data_ptr() == embedding.data_ptr():
                # New memory: pages of the mapped file may be given back at any time, with what was written to them.
                embedding.data = quantized(embedding, rounding).values(embedding.shape[1]).to(embedding.dtype)


def matrices(model: nn.Module) -> dict[str, int]:
    """How many numbers the model's matrices have, apart from embeddings and convolutions, by class and name."""
    sizes: dict[str, int] = {}
    for module in model.modules():
        if isinstance(module, nn.Embedding | nn.Conv1d | nn.Conv2d):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.dim() > 1 and parameter.is_floating_point():
                label = f"{type(module).__name__}.{name}"
                sizes[label] = sizes.get(label, 0) + parameter.numel()
    return sizes


def unrounded(model: nn.Module, before: dict[str, int], quantize: Quantize) -> str:
    """Which weights are not what `replace_linears_` was asked for; "" if all are, apart from a hundredth.

    Args:
        before: the model's `matrices` before that.
    """
    said, left, total = [], matrices(model), sum(before.values())
    if (kept := sum(left.values())) > _SMALL * total:
        dtype = str(model.dtype).removeprefix("torch.")
        largest = sorted(left, key=lambda name: -left[name])[:_NAMED]
        said.append(f"{kept / total:.0%} of the numbers in matrices stay in {dtype} ({', '.join(largest)})")
    head = model.get_output_embeddings()  # type: ignore[operator]
    eight = [each for each in model.modules() if isinstance(each, QuantizedLinear) and each.bits == 8]
    if quantize == "int4" and (many := sum(each is not head for each in eight)):
        said.append(f"{many} linears have 8 bits, because torch's 4-bit kernel does not take their widths")
    return "; ".join(said)


def on_torch(linear: Linear, rounding: Rounding | None) -> nn.Module | None:
    """A linear with integer weights, 8 bits if torch's 4-bit kernel can't take it; None if the linear is to stay."""
    if rounding is None and isinstance(linear.weight, Tensor):
        return None
    columns, width = linear.weight.shape
    four = columns % _COLUMNS == 0
    if not isinstance(linear.weight, Tensor):
        stored = linear.weight.codes()
        if stored is None or stored.bits != 4 or not four:
            return None
        return QuantizedLinear(stored, width, linear.bias)
    codes = quantized(linear.weight, "int4" if rounding == "int4" and four else "int8")
    return QuantizedLinear(codes, width, linear.bias)


class QuantizedLinear(nn.Module):
    """x @ weight.T + bias, weights of 8 or 4 bits. x is rounded to bf16, except in 8-bit products of many fp32 rows.

    torch's kernels for other dtypes are not vectorized, even with AVX2 and AVX-512: they take twenty times as long.
    """

    def __init__(self, codes: Codes, width: int, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = len(codes.codes), width
        self.bits = codes.bits
        self._four = codes.bits == 4
        self._order = codes.order
        self._padding = codes.codes.shape[1] - width
        if self._four:
            weight = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.codes.int(), 1)
            assert codes.zeros is not None
            steps = codes.scales.float().t()  # (groups, n), then the value of the middle code
            scales = torch.stack([steps, steps * (codes.zero - codes.zeros.float().t())], dim=2).to(torch.bfloat16)
        else:
            # torch's kernel reads beyond rows whose length is no multiple of 8, hence the padding.
            weight = (codes.codes.int() - codes.zero).to(torch.int8).contiguous()
            weight[:, width:] = 0
            scales = codes.scales.to(torch.bfloat16)
        self.weight: Tensor
        self.scales: Tensor
        self.register_buffer("weight", weight)
        self.register_buffer("scales", scales)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) to (..., columns)."""
        rows = x.reshape(-1, self.in_features)
        rows = rows if self._order is None else rows[:, self._order]
        if rows.dtype == torch.float32 and len(rows) > _FEW_ROWS and not self._four:
            weight = self.weight[:, : self.in_features].float() * self.scales.float()[:, None]
            return nn.functional.linear(x, weight, self.bias)
        rows = rows.to(torch.bfloat16)
        rows = nn.functional.pad(rows, (0, self._padding)) if self._padding else rows
        if self._four:
            group = rows.shape[1] // len(self.scales)
            result = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, self.weight, group, self.scales)
        else:
            result = torch._weight_int8pack_mm(rows, self.weight, self.scales)
        result = result.to(x.dtype)
        made: Tensor = result if self.bias is None else result + self.bias
        return made.view(*x.shape[:-1], self.out_features)
