"""Explains per-layer token inputs beside the residual stream, and their branches. Engine process, at load."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from ...checkpoints.linears import Linear, as_linear
from ..comparison import distance, factor_of, rounded_factor, same
from ..recipe.activations import FUNCTIONS
from ..recipe.decoder import Mlp, TokenBranch, TokenInputs
from ..recipe.primitives import NotUnderstoodError
from ..watching.run import ModuleCall, WatchedRun
from .layer_record import LayerRecord
from .norms import norm_call


@dataclass
class TokenInputsCall:
    """Token inputs as recorded: `values` (tokens, layers, width), up to a factor that the first layer shows."""

    inputs: TokenInputs
    values: Tensor
    scaled: bool = False


def read_token_inputs(model: nn.Module, seen: WatchedRun) -> TokenInputsCall | None:
    """The per-layer token inputs; None if layers are given nothing but the residual stream."""
    before = seen.module_calls[: seen.layers[0].module_calls.start]
    stream, layers = seen.layers[0].input, len(seen.layers)
    projections = [(e, linear) for e in before if (linear := as_linear(e.module)) is not None and same(e.x, stream)]
    tables = [e for e in before if isinstance(e.module, nn.Embedding) and e.result.shape[-1] % layers == 0]
    for projected, linear in projections:
        normed = next(
            (n for e in before if (n := norm_call(e)) is not None and e.x.numel() == projected.result.numel()), None
        )
        table = next((e for e in tables if e.result.numel() == projected.result.numel()), None)
        if normed is None or table is None:
            continue
        call, norm = normed.call, normed.norm
        tokens = stream.shape[1]
        # The norm cancels factors, except for their effect on its epsilon.
        norm.eps /= factor_of(projected.result, call.x) ** 2
        inputs = TokenInputs(
            table=table.module.weight.data,
            table_scale=factor_of(nn.functional.embedding(table.x, table.copied.weight), table.result),
            projection=linear,
            norm=norm,
            scale=1.0,
        )
        given = call.result.reshape(tokens, layers, -1).float() + table.result.reshape(tokens, layers, -1).float()
        return TokenInputsCall(inputs, given)
    return None


def read_token_branch(
    record: LayerRecord, linears: list[tuple[ModuleCall, Linear]], seen: TokenInputsCall
) -> tuple[TokenBranch, Tensor]:
    """(the branch of a layer's last two linears, what it adds)

    Raises:
        NotUnderstoodError: the linears compute something else.
    """
    if len(linears) == 2:
        (gate_call, gate), (down_call, down) = linears
        given = seen.values[:, record.index]
        made = {name: function(gate_call.result[0].float()) for name, function in FUNCTIONS.items()}
        if gate_call.result[0].shape == given.shape == down_call.x[0].shape:
            if not seen.scaled:
                nearest = min(made, key=lambda name: _apart(made[name] * given, down_call.x[0]))
                seen.inputs.scale = rounded_factor(factor_of(made[nearest] * given, down_call.x[0]))
                seen.scaled = True
            wanted = {name: each * given * seen.inputs.scale for name, each in made.items()}
            name = min(wanted, key=lambda name: distance(wanted[name], down_call.x[0]))
            if same(wanted[name], down_call.x[0]):
                after = record.norm_of(down_call.result)
                branch = TokenBranch(Mlp(None, gate, name, down), None if after is None else after.norm)
                return branch, down_call.result if after is None else after.call.result
    raise NotUnderstoodError("what is given beside the stream goes an unknown way")


def _apart(part: Tensor, whole: Tensor) -> float:
    """Distance of the nearest multiple of `part` from `whole`."""
    return distance(part * factor_of(part, whole), whole)
