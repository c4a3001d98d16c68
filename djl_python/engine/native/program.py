"""Lays a recipe out as a list of operations, and runs it. Runs in the engine process.

The list is made once; a step changes nothing but `Step`: the tokens, their places in the cache, the wanted rows.
Weights are packed into panels as the kernels read them; the model's own copies can be dropped after that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from ..quantization import Quantize
from .advance import Advance, cache_ahead
from .mapped import let_go
from .memory import Arena, Growing, as_tensor
from .packing import EIGHT, FOUR, PANEL, Packed, Packer, codes_bytes
from .places import Places, cache_fields, heads_fit
from .pool import ACTIVATIONS, NORMS, Kind, Op, Pool
from .recipe import Attention, Experts, Layer, Linear, Mlp, Norm, NotUnderstoodError, Recipe, Stacked

_MOST_EXPERTS: Final = 1024  # kMostExperts of routing.h
_KEPT_ROWS: Final = 64  # of logits; prompts' log-probabilities want more, and get memory of their own
_STORE, _ADD, _STORE_FP32 = range(3)


@dataclass(frozen=True)
class StepArrays:
    """One step: all its tokens, the places in the cache of their keys, and which rows' logits are `wanted`."""

    ids: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    tokens: Places
    wanted: Places


class Program:
    """A decoder, its packed weights and its cache.

    Args:
        dtype: bf16 or fp32, of weights, cache and the activations between matrix products.
        quantize: round the weights of all matrix products, and what they are multiplied with, to integers.
        blocks, block_size: of the cache.
        max_tokens: of a step.
        advance: room for weights and cache.
    """

    def __init__(
        self,
        recipe: Recipe,
        dtype: torch.dtype,
        quantize: Quantize | None = None,
        *,
        blocks: int,
        block_size: int,
        max_tokens: int,
        threads: int,
        advance: Advance | None = None,
    ) -> None:
        self.pool = Pool(threads)
        self._bf16 = dtype == torch.bfloat16
        self._dtype = dtype
        self._quantize = quantize
        self._memory = Arena(None if advance is None else as_tensor(advance.weights))
        self._packer = Packer(dtype, self.pool, self._memory)
        self._block_size = block_size
        self._kept: list[Any] = []  # what the operations point to
        self._buffers: dict[tuple[str, int, torch.dtype], int] = {}
        self._block_bytes = sum(layer.attention.shape.block_bytes(block_size, dtype) for layer in recipe.layers)
        size = blocks * self._block_bytes
        self._cache = Growing(
            size,
            cache_ahead(size),
            None if advance is None else (as_tensor(advance.cache), advance.cache_taken),
        )
        self._laid_out = 0  # bytes of a block
        self.weight_bytes = 0  # what a step reads of the matrices
        self._ops: list[Op] = []
        self._late = 0  # whether operations that are added are; the first that a step needs for logits only
        self._late_from = 0
        self._max_tokens = max_tokens
        self.vocabulary = len(recipe.head.weight)
        self.heads_per_kv_head = max(layer.attention.heads // layer.attention.kv_heads for layer in recipe.layers)
        try:
            self._lay_out(recipe)
        except NotUnderstoodError:
            self.close()
            raise
        self._memory.close()
        self._array = (Op * len(self._ops))(*self._ops)
        # Memory that is touched for the first time costs more than what is written to it.
        self._logits = torch.empty(_KEPT_ROWS, self.vocabulary)
        self._kept_maxima = self._maxima = torch.empty(_KEPT_ROWS, -(-self.vocabulary // PANEL))
        self._made = self._logits[:0]

    def run(self, step: StepArrays) -> Tensor:
        """Logits of the wanted rows: (rows, vocabulary) fp32, until the next step."""
        wanted = len(step.rows)
        if len(step.ids) > self._max_tokens:
            raise ValueError(f"a step of {len(step.ids)} tokens; the program was made for {self._max_tokens}")
        logits = self._logits if wanted <= _KEPT_ROWS else torch.empty(wanted, self.vocabulary)
        self._maxima = self._kept_maxima if wanted <= _KEPT_ROWS else torch.empty(wanted, self._maxima.shape[1])
        self._array[-1].out, self._array[-1].maxima = logits.data_ptr(), self._maxima.data_ptr()
        given, late = (each.step(self._block_size, self._block_bytes) for each in (step.tokens, step.wanted))
        given.wanted = wanted
        for name in ("ids", "slots", "rows"):
            setattr(given, name, getattr(step, name).ctypes.data)
        self._cache.used_to((int(step.slots.max()) // self._block_size + 1) * self._block_bytes)
        self.pool.run(self._array, len(self._ops) if wanted else self._late_from, given, late=late, bf16=self._bf16)
        self._cache.rest()
        self._made = logits[:wanted]
        return self._made

    def maxima_of(self, logits: Tensor) -> int | None:
        """Where the greatest of each panel of these rows are, if they are of the last step's logits."""
        first, rest = divmod(logits.data_ptr() - self._made.data_ptr(), 4 * self.vocabulary)
        if rest or not 0 <= first <= len(self._made) - len(logits):
            return None
        return int(self._maxima[first].data_ptr())

    @property
    def cache_bytes(self) -> int:
        """Room for keys and values, reserved; memory is taken as it is used."""
        return len(self._cache.bytes)

    @property
    def blocks_at_hand(self) -> int:
        """Blocks of the cache, from the first on, whose memory has been taken."""
        return self._cache.taken // self._block_bytes

    def close(self) -> None:
        """End the threads."""
        self._cache.close()
        self.pool.close()

    # ------------------------------------------------------------------------------------ layout

    def _lay_out(self, recipe: Recipe) -> None:
        self._width = recipe.embedding.shape[1]
        self._hidden = self._buffer("hidden", self._width, torch.float32)
        self._normed = self._buffer("normed", self._width, self._dtype)
        self._branch = self._buffer("branch", self._width, torch.float32)
        # The head has most of a small model's weights, and its rounding goes straight into the logits.
        head = self._packer.pack([recipe.head], None if self._quantize is None else "int8")
        let_go([recipe.head.weight])
        tied = recipe.head.weight.data_ptr() == recipe.embedding.data_ptr()
        embedded = self._hidden if recipe.embedding_norm is None else self._branch
        positions = None if recipe.positions is None else self._keep(recipe.positions.to(self._dtype).contiguous())
        self._add(
            Kind.EMBED,
            n=self._width,
            mode=int(tied),
            scale=recipe.embedding_scale,
            bias=positions,
            k=recipe.position_offset,
            out=embedded,
            **(self._weights(head) if tied else {"weight": self._keep(recipe.embedding.to(self._dtype).contiguous())}),
        )
        if recipe.embedding_norm is not None:
            self._add_norm(recipe.embedding_norm, embedded, self._hidden, mode=_STORE_FP32)
        for layer in recipe.layers:
            self._add_layer(layer, last=layer is recipe.layers[-1])
        self._add_norm(recipe.final_norm, self._hidden, self._normed)
        self._add_linear(
            head, self._normed, None, mode=_STORE_FP32, scale=recipe.head_scale, softcap=recipe.head_softcap
        )

    def _add_layer(self, layer: Layer, *, last: bool) -> None:
        self._add_norm(layer.before_attention, self._hidden, self._normed)
        mixed = self._add_attention(layer.attention, last=last)
        if layer.parallel:  # the MLP reads the stream as it was before the attention's branch
            self._add_norm(layer.before_mlp, self._hidden, self._normed)
        self._add_branch(layer.attention.output, mixed, layer.after_attention, layer.scale)
        if not layer.parallel:
            self._add_norm(layer.before_mlp, self._hidden, self._normed)
        if isinstance(layer.mlp, Experts):
            self._add_experts(layer.mlp, layer.after_mlp, layer.scale)
        else:
            inner = self._add_mlp(layer.mlp)
            self._add_branch(layer.mlp.down, inner, layer.after_mlp, layer.scale)

    def _add_attention(self, attention: Attention, *, last: bool) -> int:
        columns = (attention.heads + attention.kv_heads) * attention.dim + attention.kv_heads * attention.value_dim
        projected = self._buffer("projected", columns, torch.float32)
        self._add_linear(
            self._pack(attention.projection.joined(), of=attention.projection.parts),
            self._normed,
            projected,
            mode=_STORE_FP32,
            scale=1.0,
        )
        of_layer = attention.shape
        if not heads_fit(of_layer):
            raise NotUnderstoodError(f"heads of {attention.dim} and {attention.value_dim} dimensions")
        begin = self._cache.bytes.data_ptr() + self._laid_out
        self._laid_out += of_layer.block_bytes(self._block_size, self._dtype)
        shape = cache_fields(of_layer, begin, self._block_size, self._dtype)
        turn: dict[str, Any] = {}
        if attention.rotary is not None:
            turn = {
                "rotary": 2 * attention.rotary.cosines.shape[1],
                "interleaved": int(attention.rotary.interleaved),
                "cosines": self._keep_once(attention.rotary.cosines),
                "sines": self._keep_once(attention.rotary.sines),
            }
        norms = {
            name: self._keep(norm.weight.contiguous())
            for name, norm in (("weight2", attention.query_norm), ("weight3", attention.key_norm))
            if norm is not None
        }
        eps = next((norm.eps for norm in (attention.query_norm, attention.key_norm) if norm is not None), 0.0)
        self._add(Kind.HEADS, mode=int(attention.norms_across), in_=projected, eps=eps, **shape, **turn, **norms)
        if last:  # of tokens whose logits nobody wants, keys and values were all that is needed
            self._late_from = len(self._ops)
            self._hidden = self._add_gather("wanted hidden", self._width, self._hidden)
            projected = self._add_gather("wanted projected", columns, projected)
            self._late = 1
        mixed = self._buffer("mixed", attention.heads * attention.value_dim, self._dtype)
        of_heads = {
            name: self._keep(each.float().contiguous())
            for name, each in (("sinks", attention.sinks), ("slopes", attention.slopes))
            if each is not None
        }
        self._add(
            Kind.ATTEND, in_=projected, out=mixed, scale=attention.scale, softcap=attention.softcap,
            window=attention.window, **shape, **of_heads,
        )  # fmt: skip
        return mixed

    def _add_mlp(self, mlp: Mlp) -> int:
        inner = self._buffer("inner", len(mlp.up.weight), self._dtype)
        packed = self._pack(mlp.up) if mlp.gate is None else self._pack(mlp.gate, mlp.up)
        gated = int(mlp.gate is not None)
        self._add_linear(packed, self._normed, inner, mode=_STORE, activation=ACTIVATIONS[mlp.activation], gated=gated)
        return inner

    def _add_experts(self, experts: Experts, after: Norm | None, scale: float) -> None:
        """hidden += scale * after(experts(normed)); routing.h has the steps."""
        router = experts.router
        count, chosen = len(router.scores.weight), router.chosen
        if count > _MOST_EXPERTS:
            raise NotUnderstoodError(f"{count} experts")
        gates = [] if experts.shared_gate is None else [experts.shared_gate]
        scored = self._packer.pack([Stacked([router.scores, *gates], None).joined()], None)
        scores = self._buffer("scores", scored.n, torch.float32)
        self._add_linear(scored, self._normed, scores, mode=_STORE_FP32, scale=1.0)
        # One row for what has the experts' number of entries, 12 bytes for each of a token's choices.
        routed = self._buffer("routed", 8 * (count + 1) + 12 * chosen, torch.uint8)
        shape = {"experts": count, "chosen": chosen, "routed": routed}
        correction = None if router.correction is None else self._keep(router.correction.float().contiguous())
        mode = ("softmax", "sigmoid").index(router.function)
        self._add(
            Kind.ROUTE, in_=scores, k=scored.n, mode=mode, n=int(router.normalized), scale=router.scale,
            bias=correction, **shape,
        )  # fmt: skip
        self._add(Kind.SORT, **shape)
        linears = [experts.up] if experts.gate is None else [experts.gate, experts.up]
        up, down = self._pack_experts(linears, chosen), self._pack_experts([experts.down], chosen)
        given = self._as_wanted(up, self._normed)
        row_bytes = up.k * self._dtype.itemsize if given == self._normed else codes_bytes(up.k)
        rows = self._buffer("rows", chosen * row_bytes, torch.uint8)
        self._add(Kind.DISPATCH, in_=given, out=rows, n=row_bytes, **shape)
        inner = self._buffer("inner rows", chosen * up.n, self._dtype)
        self._add_product(
            up, rows, inner, mode=_STORE, activation=ACTIVATIONS[experts.activation], gated=len(linears) - 1,
            eps=experts.alpha, softcap=experts.limit, of_experts=1, **shape,
        )  # fmt: skip
        inner = self._as_wanted(down, inner, of_experts=1, **shape)
        parts = self._buffer("parts", chosen * down.n, torch.float32)
        self._add_product(down, inner, parts, mode=_STORE_FP32, scale=1.0, of_experts=1, **shape)
        shared: dict[str, int] = {}
        if experts.shared is not None:
            packed = self._pack(experts.shared.down)
            self._add_linear(packed, self._add_mlp(experts.shared), self._branch, mode=_STORE_FP32, scale=1.0)
            shared = {"weight": self._branch, **({"weight2": scores, "k": scored.n} if gates else {})}
        if after is None:
            self._add(Kind.COMBINE, in_=parts, out=self._hidden, n=down.n, mode=_ADD, scale=scale, **shared, **shape)
        else:
            self._add(Kind.COMBINE, in_=parts, out=self._branch, n=down.n, mode=_STORE_FP32, **shared, **shape)
            self._add_norm(after, self._branch, self._hidden, mode=_ADD, scale=scale)

    def _add_branch(self, linear: Linear, given: int, after: Norm | None, scale: float) -> None:
        """hidden += scale * after(linear(given))"""
        packed = self._pack(linear)
        if after is None:
            self._add_linear(packed, given, self._hidden, mode=_ADD, scale=scale)
        else:
            self._add_linear(packed, given, self._branch, mode=_STORE_FP32, scale=1.0)
            self._add_norm(after, self._branch, self._hidden, mode=_ADD, scale=scale)

    def _add_linear(self, packed: Packed, given: int, out: int | None, **more: Any) -> None:
        given = self._as_wanted(packed, given)
        self.weight_bytes += packed.bytes
        self._add_product(packed, given, out, **more)

    def _as_wanted(self, packed: Packed, given: int, chosen: int = 1, **more: Any) -> int:
        """What a product with these weights reads: what is given, or that rounded to integers."""
        if packed.weight_format not in (EIGHT, FOUR):
            return given
        rounded = self._buffer("codes", chosen * codes_bytes(packed.k), torch.int8)
        self._add(Kind.QUANTIZE, n=packed.k, k=packed.k, in_=given, out=rounded, chosen=chosen, **more)
        return rounded

    def _add_product(self, packed: Packed, given: int, out: int | None, **more: Any) -> None:
        """Of what is given as the weights want it."""
        bias = None if packed.bias is None else self._keep(packed.bias)
        self._add(Kind.LINEAR, n=packed.n, k=packed.k, in_=given, out=out, bias=bias, **self._weights(packed), **more)

    def _weights(self, packed: Packed) -> dict[str, int | None]:
        parts = {"weight": packed.weight, "weight2": packed.weight2, "weight3": packed.weight3}
        kept = {name: None if part is None else self._keep(part) for name, part in parts.items()}
        return {"format": packed.weight_format, **kept}

    def _add_norm(self, norm: Norm | None, given: int, out: int, **more: Any) -> None:
        details: dict[str, Any] = {}
        if norm is not None:
            details = {"eps": norm.eps, "weight": self._keep(norm.weight.contiguous())}
            if norm.bias is not None:
                details["bias"] = self._keep(norm.bias.contiguous())
        kind = None if norm is None else norm.kind
        self._add(Kind.NORM, n=self._width, norm=NORMS[kind], in_=given, out=out, **details, **more)

    def _add_gather(self, what: str, columns: int, given: int) -> int:
        """The wanted rows of what is given."""
        gathered = self._buffer(what, columns, torch.float32)
        self._add(Kind.GATHER, n=columns, in_=given, out=gathered)
        return gathered

    def _add(self, kind: int, **fields: Any) -> None:
        self._ops.append(Op(kind=kind, late=self._late, **fields))

    # ------------------------------------------------------------------------------------ memory

    def _keep(self, tensor: Tensor) -> int:
        self._kept.append(tensor)
        return int(tensor.data_ptr())

    def _keep_once(self, tensor: Tensor) -> int:
        """All layers turn by the same tables."""
        for kept in self._kept:
            if kept is tensor:
                return int(tensor.data_ptr())
        return self._keep(tensor)

    def _pack(self, *linears: Linear, of: list[Linear] | None = None) -> Packed:
        """Pack one linear or a gated pair, `of` the checkpoint's; what is packed need not be in memory twice."""
        packed = self._packer.pack(list(linears), self._quantize)
        let_go(linear.weight for linear in of or linears)
        return packed

    def _pack_experts(self, linears: list[Linear], chosen: int) -> Packed:
        """Stacked weights, one or a gated pair, as one; its outputs are each expert's in turn, in panels of its own."""
        experts, n, _ = linears[0].weight.shape
        missing = -n % (PANEL // len(linears))
        padded = [
            Linear(
                functional.pad(one.weight, (0, 0, 0, missing)).flatten(0, 1),
                None if one.bias is None else functional.pad(one.bias, (0, missing)).flatten(),
            )
            for one in linears
        ]
        packed = replace(self._packer.pack(padded, self._quantize), n=n)
        let_go(one.weight for one in linears)
        self.weight_bytes += packed.bytes * chosen // experts
        return packed

    def _buffer(self, what: str, columns: int, dtype: torch.dtype) -> int:
        """(max_tokens, columns), the same for every layer: what one reads is in the processor's cache."""
        key = (what, columns, dtype)
        if key not in self._buffers:
            self._buffers[key] = self._keep(self._memory.take(self._max_tokens * columns * dtype.itemsize))
        return self._buffers[key]
