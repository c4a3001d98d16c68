"""Recipes that are wrong in one thing each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch

from djl_python.engine.checkpoints.linears import Linear
from djl_python.engine.reading.recipe.decoder import (
    Branch,
    ExpertGroups,
    Experts,
    Layer,
    Mlp,
    Recipe,
    Router,
    TokenBranch,
)
from djl_python.engine.reading.recipe.mixers import (
    Attention,
    Convolution,
    DeltaNet,
    GatedNorm,
    LatentAttention,
    SelectiveStateSpace,
    StateSpace,
)
from djl_python.engine.reading.recipe.primitives import ACTIVATIONS, Norm, Rotary, Stacked

#: (what is changed, the changed part)
Changes = Iterator[tuple[str, Any]]
_LIKE = {"silu": "gelu", "gelu": "quick_gelu", "gelu_tanh": "quick_gelu", "quick_gelu": "gelu", "relu": "relu_squared"}


def mutants(recipe: Recipe) -> Iterator[tuple[str, Recipe]]:
    """Every single change of a recipe: (what is changed, the recipe with that change)."""
    yield from _changes(recipe, "")


def _changes(part: Any, path: str) -> Changes:
    """The changes of a part itself, and those of what it is made of."""
    for kind, change in _OWN.items():
        if isinstance(part, kind):
            yield from ((f"{path}{name}", changed) for name, changed in change(part))
    if isinstance(part, list):
        for i, each in enumerate(part):
            for name, changed in _changes(each, f"{path}{i}."):
                yield name, [*part[:i], changed, *part[i + 1 :]]
    elif dataclasses.is_dataclass(part) and not isinstance(part, type):
        for field in dataclasses.fields(part):
            for name, changed in _changes(getattr(part, field.name), f"{path}{field.name}."):
                yield name, dataclasses.replace(part, **{field.name: changed})


def _without(part: Any, *names: str) -> Changes:
    for name in names:
        if getattr(part, name) is not None:
            yield f"no {name}", dataclasses.replace(part, **{name: None})


def _times(part: Any, factor: float, *names: str) -> Changes:
    for name in names:
        value = getattr(part, name)
        if value is not None and not (isinstance(value, float) and value in (0.0, float("inf"))):
            yield f"{name} times {factor}", dataclasses.replace(part, **{name: value * factor})


def _of_recipe(recipe: Recipe) -> Changes:
    if recipe.final_norm is not None and recipe.head_projection is None:
        yield from _without(recipe, "final_norm")
    if recipe.positions is not None and recipe.embedding_norm is None:
        yield from _without(recipe, "positions")
    yield from _without(recipe, "embedding_norm")
    yield from _times(recipe, 1.1, "head_scale", "head_softcap")
    if recipe.embedding_norm is None:
        yield from _times(recipe, 1.1, "embedding_scale")
    layers = recipe.layers
    for i, layer in enumerate(layers[:-1]):  # the last one's result is normed
        if layer.end_norm is None:
            changed = dataclasses.replace(layer, factor=1.1 * layer.factor)
            yield (
                f"layers.{i}.another factor",
                dataclasses.replace(recipe, layers=[*layers[:i], changed, *layers[i + 1 :]]),
            )
    if recipe.positions is not None:
        yield "another first position", dataclasses.replace(recipe, position_offset=recipe.position_offset + 1)
    if len(recipe.layers) > 1:
        yield "a layer less", dataclasses.replace(recipe, layers=recipe.layers[:-1])


def _of_layer(layer: Layer) -> Changes:
    if layer.mixers and layer.mlp is not None and layer.mixed_norm is None:
        yield "parallel or not", dataclasses.replace(layer, parallel=not layer.parallel)
    if layer.mixed_norm is None:
        yield from _without(layer, "end_norm")
    if layer.mlp is not None and layer.mixers:
        mixer, mlp = layer.mixers[0], layer.mlp
        if mixer.before is not None and mlp.before is not None and not mixer.before.weight.equal(mlp.before.weight):
            yield (
                "norms swapped",
                dataclasses.replace(
                    layer,
                    mixers=[dataclasses.replace(mixer, before=mlp.before), *layer.mixers[1:]],
                    mlp=dataclasses.replace(mlp, before=mixer.before),
                ),
            )


def _of_branch(branch: Branch[Any]) -> Changes:
    yield from _without(branch, "before", "after")
    yield from _times(branch, 1.1, "scale")
    for name in ("before", "after"):
        norm = getattr(branch, name)
        if norm is not None and norm.kind == "rms":
            yield f"a mean taken {name}", dataclasses.replace(branch, **{name: dataclasses.replace(norm, kind="layer")})
    if branch.before is not None and branch.after is None:
        yield "norm after instead of before", dataclasses.replace(branch, before=None, after=branch.before)


def _of_norm(norm: Norm) -> Changes:
    if norm.kind == "layer":  # whether means are zero
        yield "the other kind", dataclasses.replace(norm, kind="rms")
    yield "weight plus one", dataclasses.replace(norm, weight=norm.weight + 1)
    yield from _without(norm, "bias")


def _of_linear(linear: Linear) -> Changes:
    yield from _without(linear, "bias")


def _of_stacked(stacked: Stacked) -> Changes:
    if stacked.order is not None:
        yield "columns in another order", dataclasses.replace(stacked, order=stacked.order.roll(1))
    yield from _without(stacked, "factors")


def _of_rotary(rotary: Rotary) -> Changes:
    yield "interleaved or not", dataclasses.replace(rotary, interleaved=not rotary.interleaved)
    yield "turned the other way", dataclasses.replace(rotary, sines=-rotary.sines)
    frequencies = torch.atan2(rotary.sines[1], rotary.cosines[1])
    size = (rotary.cosines[1].square() + rotary.sines[1].square()).sqrt()
    turns = torch.arange(len(rotary.cosines))[:, None] * (frequencies.sign() * frequencies.abs() ** 1.05)
    yield "another base", dataclasses.replace(rotary, cosines=turns.cos() * size, sines=turns.sin() * size)
    yield from _times(rotary, 1.1, "cosines")


def _of_attending(attention: Attention | LatentAttention) -> Changes:
    yield from _without(attention, "sinks", "slopes", "rotary")
    yield from _times(attention, 1.1, "scale", "softcap", "sinks", "slopes")
    if attention.window:
        yield "no window", dataclasses.replace(attention, window=0)
        yield "a window of one less", dataclasses.replace(attention, window=attention.window - 1)
    else:
        yield "a window", dataclasses.replace(attention, window=24)


def _of_attention(attention: Attention) -> Changes:
    yield from _without(attention, "query_norm", "key_norm", "value_norm")
    if attention.rotary is None and attention.dim % 4 == 0 and attention.reads is None:
        angles = torch.arange(256)[:, None] / 10_000 ** (torch.arange(0, attention.dim, 2) / attention.dim)
        yield "rotated", dataclasses.replace(attention, rotary=Rotary(angles.cos(), angles.sin(), False))
    if attention.reads is not None and attention.reads > 0:
        yield "another layer's keys", dataclasses.replace(attention, reads=attention.reads - 1)


def _of_mlp(mlp: Mlp) -> Changes:
    other = _LIKE.get(mlp.activation, "silu")
    yield f"{other} for {mlp.activation}", dataclasses.replace(mlp, activation=other, curve=None)
    if mlp.gate is not None and mlp.gate.weight.shape == mlp.up.weight.shape:
        yield "gate and up swapped", dataclasses.replace(mlp, gate=mlp.up, up=mlp.gate)
    if mlp.curve is not None:
        square, low, straight = mlp.curve
        yield "another curve", dataclasses.replace(mlp, curve=(square * 1.1, low, straight))


def _of_experts(experts: Experts) -> Changes:
    if experts.activation in ACTIVATIONS and experts.activation != "clamped_swiglu":
        yield "another activation", dataclasses.replace(experts, activation=_LIKE.get(experts.activation, "silu"))
    else:
        yield from _times(experts, 1.1, "alpha")
        yield from _times(experts, 0.05, "limit")
    if experts.gate is not None and experts.gate.weight.shape == experts.up.weight.shape:
        yield "gate and up swapped", dataclasses.replace(experts, gate=experts.up, up=experts.gate)
    yield from _without(experts, "shared_gate")
    if experts.shared is not None:
        yield "no shared expert", dataclasses.replace(experts, shared=None, shared_gate=None)


def _of_router(router: Router) -> Changes:
    yield (
        "the other function",
        dataclasses.replace(router, function="sigmoid" if router.function == "softmax" else "softmax"),
    )
    yield "normalized or not", dataclasses.replace(router, normalized=not router.normalized)
    yield "one expert less", dataclasses.replace(router, chosen=router.chosen - 1)
    yield from _without(router, "correction", "groups")
    yield from _times(router, 1.1, "scale")


def _of_groups(groups: ExpertGroups) -> Changes:
    yield "ranked by others", dataclasses.replace(groups, ranks=3 - groups.ranks)


def _of_convolution(convolution: Convolution) -> Changes:
    yield "taps in another order", dataclasses.replace(convolution, taps=convolution.taps.flip(0).contiguous())
    yield from _without(convolution, "bias")
    other = None if convolution.activation else "silu"
    yield "another activation", dataclasses.replace(convolution, activation=other)


def _of_delta_net(net: DeltaNet) -> Changes:
    yield from _times(net, 1.1, "decay", "max_beta")
    yield "no bias of decay", dataclasses.replace(net, decay_bias=torch.zeros_like(net.decay_bias))


def _of_state_space(space: StateSpace) -> Changes:
    yield from _without(space, "skipped")
    yield from _times(space, 1.1, "decay", "skipped")
    yield "no bias of steps", dataclasses.replace(space, step_bias=torch.zeros_like(space.step_bias))


def _of_selective(space: SelectiveStateSpace) -> Changes:
    yield from _without(space, "skipped", "step_bias", "narrow_norm", "shared_norm")
    yield from _times(space, 1.1, "decay", "skipped")


def _of_gated_norm(norm: GatedNorm) -> Changes:
    yield "gate first or last", dataclasses.replace(norm, gate_first=not norm.gate_first)


def _of_token_branch(branch: TokenBranch) -> Changes:
    yield from _without(branch, "after")


_OWN: dict[Any, Callable[[Any], Changes]] = {
    Recipe: _of_recipe,
    Layer: _of_layer,
    Branch: _of_branch,
    Norm: _of_norm,
    Linear: _of_linear,
    Stacked: _of_stacked,
    Rotary: _of_rotary,
    (Attention, LatentAttention): _of_attending,
    Attention: _of_attention,
    Mlp: _of_mlp,
    Experts: _of_experts,
    Router: _of_router,
    ExpertGroups: _of_groups,
    Convolution: _of_convolution,
    DeltaNet: _of_delta_net,
    StateSpace: _of_state_space,
    SelectiveStateSpace: _of_selective,
    GatedNorm: _of_gated_norm,
    TokenBranch: _of_token_branch,
}
