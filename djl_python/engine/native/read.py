"""Reads a recipe from what was watched. Runs in the engine process, once.

From the recorded numbers, not from names, the layers are read: which linear makes queries, what a norm does, how
positions turn them, where a residual is added and with what factor. Each reading is checked against the recorded
tensors; what can't be explained raises `NotUnderstoodError`, and the model runs on torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import Tensor, nn

from ..attention import PAGED
from .recipe import Attention, Layer, Linear, Mlp, Norm, NotUnderstoodError, Recipe, Rotary
from .watch import FIRST_POSITION, TOKENS, Call, Event, Watched, watch

# Relative; bf16 rounds to 1/256. What is to be told apart differs by far more.
_TOLERANCE: Final = 2e-2
_ACTIVATIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "silu": nn.functional.silu,
    "gelu_tanh": lambda x: nn.functional.gelu(x, approximate="tanh"),
    "gelu": nn.functional.gelu,
    "relu": nn.functional.relu,
}


@torch.inference_mode()
def read_recipe(model: Any, max_positions: int) -> Recipe:
    """Read a model whose attention is `PAGED`.

    Raises:
        NotUnderstoodError: says at what.
    """
    assert model.config._attn_implementation == PAGED
    seen = watch(model)
    if not seen.calls or len(seen.calls) != len(seen.spans):
        raise NotUnderstoodError("attention does not run once in each layer")
    rotaries = list(_rotaries(seen, max_positions))
    layers = [_read_layer(seen, index, rotaries) for index in range(len(seen.spans))]
    return _read_ends(model, seen, layers)


# -------------------------------------------------------------------------------------------------------- comparing


def _same(a: Tensor, b: Tensor) -> bool:
    """Equal up to the rounding of the model's own format."""
    if a.numel() != b.numel():
        return False
    a, b = a.reshape(-1).float(), b.reshape(-1).float()
    return bool((a - b).norm() <= _TOLERANCE * b.norm() + 1e-6)


def _distance(a: Tensor, b: Tensor) -> float:
    return float((a.float() - b.float()).norm())


def _factor(part: Tensor, whole: Tensor) -> float:
    """The number s for which s * part is nearest to whole."""
    part, whole = part.reshape(-1).double(), whole.reshape(-1).double()
    return float(part @ whole / (part @ part).clamp_min(1e-30))


def _round(factor: float) -> float:
    return 1.0 if abs(factor - 1) < 1e-2 else factor


# -------------------------------------------------------------------------------------------------------- parts


def _as_linear(module: Any) -> Linear | None:
    if isinstance(module, nn.Linear):
        return Linear(module.weight.data, None if module.bias is None else module.bias.data)
    if type(module).__name__ == "Conv1D":  # GPT-2's linear, transposed
        return Linear(module.weight.data.T, module.bias.data)
    return None


def _as_norm(event: Event) -> Norm | None:
    """A norm, recognized by what it did to its input."""
    weight = getattr(event.module, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 1 or not isinstance(event.result, Tensor):
        return None
    x = event.x.float()
    bias = getattr(event.module, "bias", None)
    shift = bias.data.float() if isinstance(bias, Tensor) else None
    eps = next(
        (v for k in ("variance_epsilon", "eps", "norm_eps") if isinstance(v := getattr(event.module, k, None), float)),
        1e-6,
    )
    if x.shape[-1] != len(weight):
        return None
    rms = x * (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt()
    centred = nn.functional.layer_norm(x, (x.shape[-1],), eps=eps)
    for kind, normal in (("rms", rms), ("layer", centred)):
        for scale in (weight.data.float(), weight.data.float() + 1):
            if _same(normal * scale + (0 if shift is None else shift), event.result):
                return Norm(kind, scale, shift, eps)
    return None


def _rotaries(seen: Watched, max_positions: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Every table of cos and sin that the model made, for all positions: (positions, rotated) each."""
    for event in seen.events:
        if "Rotary" not in type(event.module).__name__ or not isinstance(event.result, tuple):
            continue
        places = torch.arange(max_positions)[None]

        def all_places(value: Any, places: Tensor = places) -> Any:
            is_positions = isinstance(value, Tensor) and not value.is_floating_point() and value.shape[-1] == TOKENS
            return places if is_positions else value

        given = tuple(all_places(value) for value in event.given)
        keywords = {name: all_places(value) for name, value in event.keywords.items()}
        cos, sin = event.module(*given, **keywords)
        yield cos[0].float(), sin[0].float()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """x (heads, tokens, dim), the first dimensions rotated by cos and sin (tokens, half)."""
    half = cos.shape[-1]
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    if interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
        turned = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
    else:
        a, b = turned[..., :half], turned[..., half:]
        turned = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    return torch.cat([turned, rest], -1)


class _LayerReader:
    """One layer's events."""

    def __init__(self, seen: Watched, index: int) -> None:
        first, last, self.given, self.result = seen.spans[index]
        self.call = seen.calls[index]
        events = [e for e in seen.events[first:last] if isinstance(e.result, Tensor)]
        self.linears = [(e, linear) for e in events if (linear := _as_linear(e.module)) is not None]
        self.norms = [(e, norm) for e in events if (norm := _as_norm(e)) is not None]

    def norm_into(self, x: Tensor) -> tuple[Event, Norm] | None:
        """The norm whose result is x."""
        return next(((e, n) for e, n in self.norms if e.result.shape == x.shape and torch.equal(e.result, x)), None)

    def norm_of(self, x: Tensor) -> tuple[Event, Norm] | None:
        """The norm that x is the input of."""
        return next(((e, n) for e, n in self.norms if e.x.shape == x.shape and torch.equal(e.x, x)), None)


def _read_layer(seen: Watched, index: int, rotaries: list[tuple[Tensor, Tensor]]) -> Layer:
    reader = _LayerReader(seen, index)
    call = reader.call
    flat = call.result.reshape(1, call.result.shape[1], -1)
    position = next(
        (i for i, (e, _) in enumerate(reader.linears) if e.x.shape == flat.shape and torch.equal(e.x, flat)), None
    )
    if position is None or position == 0:
        raise NotUnderstoodError(f"layer {index}: no linear takes the attention's result")
    before, (output_event, output) = reader.linears[:position], reader.linears[position]
    rest = reader.linears[position + 1 :]
    attention_input = before[0][0].x
    if parallel_first := [pair for pair in before if not torch.equal(pair[0].x, attention_input)]:
        raise NotUnderstoodError(
            f"layer {index}: {len(parallel_first)} linears before the attention read something else"
        )
    attention = _read_attention(reader, before, output, rotaries)
    mlp, mlp_input, mlp_output = _read_mlp(rest, index)
    into_attention = reader.norm_into(attention_input)
    if not _same(attention_input if into_attention is None else into_attention[0].x, reader.given):
        raise NotUnderstoodError(f"layer {index}: the attention does not read the layer's input")
    branch, after_attention = _after(reader, output_event.result)
    mlp_branch, after_mlp = _after(reader, mlp_output)
    into_mlp = reader.norm_into(mlp_input)
    source = mlp_input if into_mlp is None else into_mlp[0].x
    parallel = _same(source, reader.given)
    scale = _round(
        _factor(branch, reader.result - reader.given - mlp_branch)
        if parallel
        else _factor(branch, source - reader.given)
    )
    middle = reader.given.float() + scale * branch.float()
    if not parallel and not _same(middle, source):
        raise NotUnderstoodError(f"layer {index}: the MLP reads something else than the residual stream")
    if not _same(middle + scale * mlp_branch.float(), reader.result):
        raise NotUnderstoodError(f"layer {index}: its result is not the sum of its branches")
    return Layer(
        before_attention=None if into_attention is None else into_attention[1],
        attention=attention,
        after_attention=after_attention,
        before_mlp=None if into_mlp is None else into_mlp[1],
        mlp=mlp,
        after_mlp=after_mlp,
        parallel=parallel,
        scale=scale,
    )


def _after(reader: _LayerReader, x: Tensor) -> tuple[Tensor, Norm | None]:
    """A branch as it is added: through a norm of its own, or as it is."""
    found = reader.norm_of(x)
    return (x, None) if found is None else (found[0].result, found[1])


# -------------------------------------------------------------------------------------------------------- attention


def _read_attention(
    reader: _LayerReader, before: list[tuple[Event, Linear]], output: Linear, rotaries: list[tuple[Tensor, Tensor]]
) -> Attention:
    call = reader.call
    _, heads, _, dim = call.query.shape
    kv_heads, value_dim = call.key.shape[1], call.value.shape[3]
    projection, made = _projection(before, call)
    queries, keys, values = torch.split(made, [heads * dim, kv_heads * dim, kv_heads * value_dim], -1)
    by_head = _by_head(values, kv_heads)
    if not _same(by_head, call.value[0]):
        raise NotUnderstoodError("values are not a projection")
    query_norm, key_norm, rotary = _turn(
        reader,
        (_by_head(queries, heads), call.query[0]),
        (_by_head(keys, kv_heads), call.key[0]),
        rotaries,
    )
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        dim=dim,
        value_dim=value_dim,
        scale=call.scale,
        softcap=call.softcap,
        window=call.window,
        sinks=call.sinks,
        projection=projection,
        query_norm=query_norm,
        key_norm=key_norm,
        rotary=rotary,
        output=output,
    )


def _by_head(columns: Tensor, heads: int) -> Tensor:
    """(tokens, heads * dim) -> (heads, tokens, dim)"""
    return columns.reshape(len(columns), heads, -1).transpose(0, 1)


def _projection(before: list[tuple[Event, Linear]], call: Call) -> tuple[Linear, Tensor]:
    """Queries, keys and values as one linear, and its result (tokens, columns) fp32."""
    result = torch.cat([event.result[0] for event, _ in before], -1).float()
    weight = torch.cat([linear.weight for _, linear in before])
    biases = [linear.bias for _, linear in before]
    bias = None
    if any(b is not None for b in biases):
        bias = torch.cat(
            [
                linear.weight.new_zeros(len(linear.weight)) if b is None else b
                for b, (_, linear) in zip(biases, before, strict=True)
            ]
        )
    heads, dim = call.query.shape[1], call.query.shape[3]
    kv_heads, value_dim = call.key.shape[1], call.value.shape[3]
    if len(weight) != (heads + kv_heads) * dim + kv_heads * value_dim:
        raise NotUnderstoodError("the linears before the attention make more than queries, keys and values")
    columns = torch.arange(len(weight))
    if len(before) == 1 and heads == kv_heads and dim == value_dim:
        value = call.value[0].transpose(0, 1).flatten(1)
        mixed = columns.view(heads, 3, dim).transpose(0, 1).flatten()  # head by head: its query, key and value
        if not _same(result[:, columns[-heads * dim :]], value) and _same(result[:, mixed[-heads * dim :]], value):
            columns = mixed
    if torch.equal(columns, torch.arange(len(columns))):
        return Linear(weight, bias), result
    return Linear(weight[columns], None if bias is None else bias[columns]), result[:, columns]


def _turn(
    reader: _LayerReader,
    queries: tuple[Tensor, Tensor],
    keys: tuple[Tensor, Tensor],
    rotaries: list[tuple[Tensor, Tensor]],
) -> tuple[Norm | None, Norm | None, Rotary | None]:
    """What lies between the projections and the attention: norms of each head, a rotation by position."""
    norms: list[Norm | None] = [None]
    for event, norm in reader.norms:
        if norm.kind == "rms" and norm.bias is None and len(norm.weight) == queries[0].shape[-1] and event.x.dim() == 4:
            norms.append(norm)
    places = slice(FIRST_POSITION, FIRST_POSITION + TOKENS)
    turns: list[Rotary | None] = [None]
    for cos, sin in rotaries:
        half = cos.shape[-1] // 2
        turns.append(Rotary(cos[:, :half].contiguous(), sin[:, :half].contiguous(), interleaved=False))
        turns.append(Rotary(cos[:, :half].contiguous(), sin[:, :half].contiguous(), interleaved=True))
        turns.append(Rotary(cos[:, 0::2].contiguous(), sin[:, 0::2].contiguous(), interleaved=True))

    def explains(pair: tuple[Tensor, Tensor], norm: Norm | None, turn: Rotary | None) -> bool:
        x = pair[0]
        if norm is not None:
            x = x * (x.pow(2).mean(-1, keepdim=True) + norm.eps).rsqrt() * norm.weight
        if turn is not None:
            if 2 * turn.cosines.shape[-1] > x.shape[-1]:
                return False
            x = _rotate(x, turn.cosines[places], turn.sines[places], turn.interleaved)
        return _same(x, pair[1])

    for turn in turns:
        query_norm = next((n for n in norms if explains(queries, n, turn)), queries)
        key_norm = next((n for n in norms if explains(keys, n, turn)), keys)
        if not isinstance(query_norm, tuple) and not isinstance(key_norm, tuple):
            return query_norm, key_norm, turn
    raise NotUnderstoodError("queries or keys are changed in an unknown way after their projection")


# -------------------------------------------------------------------------------------------------------- MLP and ends


def _read_mlp(linears: list[tuple[Event, Linear]], index: int) -> tuple[Mlp, Tensor, Tensor]:
    """(the MLP, its input, its result)"""
    if len(linears) not in (2, 3):
        raise NotUnderstoodError(f"layer {index}: an MLP of {len(linears)} linears")
    *first, (down_event, down) = linears
    x = first[0][0].x
    if any(not torch.equal(event.x, x) for event, _ in first):
        raise NotUnderstoodError(f"layer {index}: the MLP's linears read different things")
    made = [event.result.float() for event, _ in first]
    weights = [linear for _, linear in first]
    wanted = down_event.x.float()
    choices: list[tuple[Linear | None, Linear, Tensor, Tensor | float]] = []
    if len(first) == 2:
        choices = [(weights[0], weights[1], made[0], made[1]), (weights[1], weights[0], made[1], made[0])]
    else:
        choices = [(None, weights[0], made[0], 1.0)]
        if made[0].shape[-1] == 2 * wanted.shape[-1]:
            halves = made[0].chunk(2, -1)
            parts = [
                Linear(w, None if weights[0].bias is None else b)
                for w, b in zip(
                    weights[0].weight.chunk(2),
                    (weights[0].bias if weights[0].bias is not None else weights[0].weight[:, 0]).chunk(2),
                    strict=True,
                )
            ]
            choices = [(parts[0], parts[1], halves[0], halves[1]), (parts[1], parts[0], halves[1], halves[0])]
    # The nearest, not the first that is near: two kinds of GELU differ by less than the rounding of bf16.
    _, gate, up, name, explained = min(
        (
            (_distance(function(inner) * factor, wanted), gate, up, name, _same(function(inner) * factor, wanted))
            for gate, up, inner, factor in choices
            for name, function in _ACTIVATIONS.items()
            if inner.shape == wanted.shape
        ),
        key=lambda choice: choice[0],
        default=(0.0, None, down, "", False),
    )
    if explained:
        return Mlp(gate, up, name, down), x, down_event.result
    raise NotUnderstoodError(f"layer {index}: an unknown activation in the MLP")


def _read_ends(model: Any, seen: Watched, layers: list[Layer]) -> Recipe:
    table = model.get_input_embeddings()
    embedded = [e for e in seen.events if isinstance(e.module, nn.Embedding)]
    first = next((e for e in embedded if e.module is table), None)
    if first is None:
        raise NotUnderstoodError("the embedding is not a table")
    start = seen.spans[0][2].float()
    rows = torch.nn.functional.embedding(first.x, table.weight).float()
    others = [e for e in embedded if e.module is not table and e.result.numel() == rows.numel()]
    positions, offset = None, 0
    added: Tensor | float = 0.0
    if others:
        positions = others[0].module.weight.data
        offset = int(others[0].x.reshape(-1)[0]) - FIRST_POSITION
        added = others[0].result.reshape(rows.shape).float()
    scale = _round(_factor(rows, start - added))
    if not _same(scale * rows + added, start):
        raise NotUnderstoodError("the first layer does not read the embedding")
    end = seen.spans[-1][3]
    final = next(
        (
            (e, n)
            for e in seen.events
            if (n := _as_norm(e)) is not None and e.x.shape == end.shape and torch.equal(e.x, end)
        ),
        None,
    )
    hidden = end if final is None else final[0].result
    head_event = seen.events[-1]
    head = _as_linear(head_event.module)
    if head is None or not torch.equal(head_event.x, hidden):
        raise NotUnderstoodError("the logits are not a linear of the last layer's normed result")
    made = head_event.result[0].float()
    head_scale = _round(_factor(made, seen.logits))
    softcap = 0.0
    if not _same(made * head_scale, seen.logits):
        softcap = float(getattr(model.config.get_text_config(decoder=True), "final_logit_softcapping", None) or 0)
        if not softcap or not _same(torch.tanh(made / softcap) * softcap, seen.logits):
            raise NotUnderstoodError("the logits are changed in an unknown way")
        head_scale = 1.0
    assert math.isfinite(head_scale)
    return Recipe(
        embedding=table.weight.data,
        embedding_scale=scale,
        positions=positions,
        position_offset=offset,
        layers=layers,
        final_norm=None if final is None else final[1],
        head=head,
        head_scale=head_scale,
        head_softcap=softcap,
    )
