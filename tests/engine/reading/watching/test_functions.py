"""What a model's modules call is recorded in the forms that releases of transformers have for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from djl_python.engine.reading.watching import functions
from djl_python.engine.reading.watching.functions import CONVOLUTION, DELTA_RULE, FunctionCall, watch_functions

TOKENS, CHANNELS, TAPS = 5, 4, 3
GIVEN = torch.randn(1, CHANNELS, TOKENS, generator=torch.Generator().manual_seed(3))


class Convolved(nn.Module):
    """A layer that convolves by a module of torch, or by a library's function where that is installed."""

    def __init__(self, *, takes_function: bool) -> None:
        super().__init__()
        self.conv = nn.Conv1d(CHANNELS, CHANNELS, TAPS, groups=CHANNELS, padding=TAPS - 1)
        if takes_function:
            self.causal_conv1d_fn = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        function: Any = getattr(self, CONVOLUTION, None)
        if function is not None:
            made: torch.Tensor = function(
                x=x, weight=self.conv.weight[:, 0], bias=self.conv.bias, activation="silu", seq_idx=None
            )
            return made
        made = self.conv(x)[..., : x.shape[-1]]
        return nn.functional.silu(made) if hasattr(self, CONVOLUTION) else made


def watched(model: nn.Module) -> tuple[torch.Tensor, list[FunctionCall]]:
    calls: list[FunctionCall] = []
    with watch_functions(model, calls), torch.inference_mode():
        result = model(GIVEN)
    return result, calls


@pytest.mark.parametrize("takes_function", [False, True])
def test_a_convolution_by_a_module_is_recorded_with_its_activation(takes_function: bool) -> None:
    model = Convolved(takes_function=takes_function)
    result, (call,) = watched(model)
    torch.testing.assert_close(result, model(GIVEN))
    assert torch.equal(call.result, result) and call.name == CONVOLUTION
    assert torch.equal(call.arguments["hidden_states"], GIVEN)
    assert torch.equal(call.arguments["weight"], model.conv.weight[:, 0])
    assert call.arguments.get("activation") == ("silu" if takes_function else None)


def test_a_module_is_as_it_was_after_it_was_watched() -> None:
    model = Convolved(takes_function=True)
    watched(model)
    assert model.causal_conv1d_fn is None


def test_a_function_that_a_module_keeps_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def rule(query: torch.Tensor) -> torch.Tensor:
        return query + 1

    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.chunk_gated_delta_rule = rule

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.chunk_gated_delta_rule(x)

    monkeypatch.setattr(functions, "files_of", lambda _: [SimpleNamespace(torch_chunk_gated_delta_rule=rule)])
    model = Keeps()
    _, (call,) = watched(model)
    assert (call.name, torch.equal(call.result, GIVEN + 1)) == (DELTA_RULE, True)
    assert model.chunk_gated_delta_rule is rule
