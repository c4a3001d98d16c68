"""Unpacks the weights of checkpoints that were quantized beforehand. Runs in the engine process, at load.

All formats pack codes into words of 32 bits, the first code into the lowest bits, continued in the next word where one
does not fit. Each group of inputs has a scale and a zero point for each output:

- "gptq": `qweight` (k * bits / 32, n), `qzeros` (groups, n * bits / 32), each less 1, `scales` (groups, n), and `g_idx`
  (k,), the group of each input, which need not be in order. Ones are subtracted from whole words: a zero point of 0
  borrows from the next; where zero points cross words, it wraps. "gptq_v2" stores zero points without the 1.
- "gemm", AWQ's format: `qweight` (k, n / 8), `qzeros` (groups, n / 8), `scales` (groups, n), 4 bits; a word holds
  outputs 0, 2, 4, 6, 1, 3, 5 and 7 of eight.
- "pack-quantized", of compressed-tensors: `weight_packed` (n, k * bits / 32), `weight_scale` (n, groups), optionally
  `weight_g_idx` (k,) and `weight_zero_point` (n * bits / 32, groups); without it, the middle code is the zero point.

Source: the quantization documents of transformers, and what AutoGPTQ, AutoAWQ, GPTQModel and compressed-tensors read
and write.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from ..quantization import GROUP, Codes, row_blocks

_GEMM_BITS: Final = 4
_GEMM_OUTPUTS: Final = (0, 2, 4, 6, 1, 3, 5, 7)  # in the order in which a word holds them


@dataclass(frozen=True)
class PackedFormat:
    """The names of a linear's tensors ("" for those it lacks), and the bits that codes may have.

    Attributes:
        inputs: the dimension of codes in which words pack inputs; None if they pack outputs.
    """

    codes: str
    scales: str
    zeros: str
    groups: str
    shape: str
    bits: tuple[int, ...]
    inputs: int | None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.codes, self.scales, self.zeros, self.groups, self.shape)))


_GPTQ: Final = PackedFormat("qweight", "scales", "qzeros", "g_idx", "", (2, 3, 4, 8), inputs=0)
PACKED_FORMATS: Final = {
    "gptq": _GPTQ,
    "gptq_v2": _GPTQ,
    "gemm": PackedFormat("qweight", "scales", "qzeros", "", "", (_GEMM_BITS,), inputs=None),
    "pack-quantized": PackedFormat(
        "weight_packed",
        "weight_scale",
        "weight_zero_point",
        "weight_g_idx",
        "weight_shape",
        tuple(range(2, 9)),
        inputs=1,
    ),
}


@dataclass(frozen=True)
class UnpackedWeight:
    """A weight: (codes[i, j] - zeros[i, groups[j]]) * scales[i, groups[j]].

    Attributes:
        codes: (n, k) uint8.
        scales: (n, groups), in the stored dtype.
        zeros: (n, groups) int16.
        groups: (k,) the group of each input.
    """

    bits: int
    codes: Tensor
    scales: Tensor
    zeros: Tensor
    groups: Tensor

    @staticmethod
    def unpacked(packed_format: str, bits: int, group_size: int, tensors: Mapping[str, Tensor]) -> UnpackedWeight:
        """Unpack the tensors of one linear.

        Args:
            group_size: inputs of a group, if groups are in order; below 1, there is one group.
        """
        names = PACKED_FORMATS[packed_format]
        words, scales, zero_words = tensors[names.codes], tensors[names.scales], tensors.get(names.zeros)
        if packed_format == "pack-quantized":
            codes = _from_words(words, bits)[:, : int(tensors[names.shape][1])].contiguous()
            if zero_words is None:
                zeros = torch.full_like(scales, 1 << (bits - 1), dtype=torch.int16)
            else:
                zeros = _from_words(zero_words.T, bits)[:, : len(codes)].T.short()
        else:
            assert zero_words is not None
            scales = scales.T
            if packed_format == "gemm":
                codes, zeros = _from_gemm_words(words.T), _from_gemm_words(zero_words.T).short()
            else:
                unpack = _gptq_zeros if packed_format == "gptq" else _from_words
                codes, zeros = _from_words(words.T, bits), unpack(zero_words, bits)[:, : len(scales)].T.short()
        groups = tensors.get(names.groups)
        if groups is None:
            k, count = codes.shape[1], scales.shape[1]
            size = group_size if group_size > 0 else k
            # A linear's groups may have another size than `group_size`; the number of groups tells.
            groups = torch.arange(k, device=codes.device) // (size if -(-k // size) == count else -(-k // count))
        return UnpackedWeight(bits, codes, scales.contiguous(), zeros.contiguous(), groups.long())

    def values(self, dtype: torch.dtype) -> Tensor:
        """Dequantized weight (n, k), computed in fp32."""
        n, k = self.codes.shape
        size = self._group_size
        made = torch.empty(n, k, dtype=dtype, device=self.codes.device)
        for rows in row_blocks(n, k):
            scales, zeros = self.scales[rows].float(), self.zeros[rows].float()
            values = self.codes[rows].float()
            if size is None:
                values.sub_(zeros[:, self.groups]).mul_(scales[:, self.groups])
            else:
                grouped = values.view(len(values), -1, size)
                grouped.sub_(zeros[:, :, None]).mul_(scales[:, :, None])
            made[rows] = values
        return made

    def for_kernels(self) -> Codes | None:
        """The codes for kernels; None if groups are smaller than `GROUP`, or scales or zero points don't fit theirs."""
        order = None if self._in_order else self.groups.argsort(stable=True)
        places = self._groups_of_blocks(order)
        scales = self.scales.half()
        if places is None or not torch.equal(scales.float(), self.scales.float()) or self.zeros.amax() > 255:
            return None
        zeros = self.zeros.to(torch.uint8)[:, places]
        codes = self.codes if order is None else self.codes[:, order]
        missing = -codes.shape[1] % GROUP
        if missing:
            codes = torch.cat([codes, zeros[:, -1:].expand(-1, missing)], 1)
        bits = 4 if self.bits <= 4 else 8
        return Codes(bits, codes, scales[:, places].contiguous(), zeros, None if order is None else order.int())

    @property
    def _in_order(self) -> bool:
        return bool((self.groups.diff() >= 0).all())

    @property
    def _group_size(self) -> int | None:
        """Inputs of a group, if groups are in order and all of one size; else None."""
        sizes = self.groups.bincount(minlength=self.scales.shape[1])
        return int(sizes[0]) if self._in_order and bool((sizes == sizes[0]).all()) else None

    def _groups_of_blocks(self, order: Tensor | None) -> Tensor | None:
        """(blocks,) the group of each `GROUP` inputs, taken in `order`; None if some belong to several groups."""
        groups = self.groups if order is None else self.groups[order]
        padded = torch.cat([groups, groups[-1:].expand(-len(groups) % GROUP)]).view(-1, GROUP)
        return padded[:, 0] if bool((padded == padded[:, :1]).all()) else None


def _gptq_zeros(words: Tensor, bits: int) -> Tensor:
    """Unpack zero points of "gptq", which are stored less 1."""
    if 32 % bits:  # zero points cross words
        return (_from_words(words, bits) + 1) % (1 << bits)
    return _from_words(words + sum(1 << shift for shift in range(0, 32, bits)), bits)


def _from_words(words: Tensor, bits: int) -> Tensor:
    """Unpack (rows, words) to (rows, codes)."""
    octets = words.contiguous().view(torch.uint8)
    if 8 % bits == 0:
        parts = [octets >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)]
        return torch.stack(parts, 2).view(len(octets), -1)
    ones = torch.stack([octets >> shift & 1 for shift in range(8)], 2).view(len(octets), -1, bits)
    return sum((ones[:, :, bit] << bit for bit in range(bits)), torch.zeros_like(ones[:, :, 0]))


def _from_gemm_words(words: Tensor) -> Tensor:
    """Unpack (words, inputs), of eight outputs to a word, to (outputs, inputs)."""
    count, inputs = words.shape
    made = torch.empty(count, len(_GEMM_OUTPUTS), inputs, dtype=torch.uint8, device=words.device)
    words = words.contiguous()
    for place, output in enumerate(_GEMM_OUTPUTS):
        made[:, output] = words >> (place * _GEMM_BITS) & (1 << _GEMM_BITS) - 1
    return made.view(-1, inputs)
