"""Pipeline parallelism: groups of a model's layers on different devices, which compute one after the other.

Runs in the engine processes, one for each device: the ranks. All of them make the same calls of the model, in the same
order. Rank 0 embeds the tokens, computes its layers, sends the hidden states to rank 1, and receives from the last rank
the hidden states for the logits. The others receive hidden states, compute their layers, and send them on; they have
neither the embedding's weights nor the head's. transformers declares which architectures have layers that take and
return hidden states (`base_model_pp_plan`).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...core.errors import ModelLoadError
from ..settings import BuiltInSettings
from ..transformers_private import ignore_when_loading, keep_uninitialized, untie
from .tensor_parallel import hindrance

#: A plan's entry for layers that can be divided.
_LAYERS: Final = (["hidden_states", "attention_mask"], ["hidden_states"])


def check_stages(settings: BuiltInSettings) -> None:
    """Check that a model's layers can be divided among `option.pipeline_parallel_degree` devices.

    Raises:
        ModelLoadError: the model can't be divided, or has fewer layers than stages.
    """
    from transformers import AutoConfig

    degree = settings.pipeline_parallel_degree
    named = f"option.pipeline_parallel_degree={degree}"
    config = AutoConfig.from_pretrained(settings.model_path, trust_remote_code=settings.trust_remote_code)
    text = config.get_text_config(decoder=True)
    if reason := hindrance(settings, text, _has_plan(text)):
        raise ModelLoadError(f"{named}: {reason} runs on one device")
    if getattr(config, "quantization_config", None):
        raise ModelLoadError(f"{named}: a quantized checkpoint runs on one device")
    if degree > text.num_hidden_layers:
        raise ModelLoadError(f"{named}: there are {text.num_hidden_layers} layers; expected at most as many")


def _has_plan(text: Any) -> bool:
    plan = getattr(text, "base_model_pp_plan", None) or {}
    # Layers that use keys of others' have no cache of their own.
    return tuple(plan.get("layers", ())) == _LAYERS and not getattr(text, "num_kv_shared_layers", 0)


def layers_of(rank: int, degree: int, count: int) -> range:
    """A rank's layers, of `count`; the first ranks have one more if they can't have equally many."""
    each, more = divmod(count, degree)
    ends = list(itertools.accumulate((each + (place < more) for place in range(degree)), initial=0))
    return range(ends[rank], ends[rank + 1])


def keep_stage_(model: Any) -> None:
    """Leave a model, whose weights are not loaded yet, with this rank's layers."""
    before = {name for name, _ in model.named_parameters()}
    model.stage = _Stage(model, dist.get_rank(), dist.get_world_size())
    left = {name for name, _ in model.named_parameters()}
    ignore_when_loading(model, (f"^{re.escape(name)}$" for name in before - left))


def end_probes(model: Any) -> None:
    """Have rank 0 keep the logits to itself from now on, if the model has been divided by `keep_stage_`."""
    if stage := getattr(model, "stage", None):
        stage.sends_logits = False


class _Stage:
    """One rank's group of layers, within a model that has weights for these alone.

    Attributes:
        sends_logits: whether all ranks get the logits of rank 0, which they compare while the model is opened.
    """

    def __init__(self, model: Any, rank: int, degree: int) -> None:
        self._rank, self._degree = rank, degree
        self.sends_logits = True
        base, head = model.get_decoder(), model.get_output_embeddings()
        mine = layers_of(rank, degree, len(base.layers))
        for index, layer in enumerate(base.layers):
            if index not in mine:
                _empty_(layer, _passed)
        if rank == 0:
            _empty_(base.layers[mine.stop], self._others)
            head.register_forward_hook(self._send_logits)
            return
        self._wrap_first_and_last_(base.layers, mine)
        embedding, vocabulary = base.get_input_embeddings(), head.out_features
        width, dtype = embedding.embedding_dim, embedding.weight.dtype
        base.set_input_embeddings(_Of(lambda ids: torch.zeros(*ids.shape, width, dtype=dtype, device=ids.device)))
        model.set_output_embeddings(
            _Of(lambda hidden: self._received_logits(hidden.new_zeros(*hidden.shape[:-1], vocabulary)))
        )
        untie(model)

    def _wrap_first_and_last_(self, layers: nn.ModuleList, mine: range) -> None:
        """Have the first of these layers receive the previous rank's result, and the last one send its own."""
        layers[mine.start].register_forward_pre_hook(lambda layer, args: (self._receive(args[0]), *args[1:]))
        layers[mine.stop - 1].register_forward_hook(lambda layer, args, hidden: self._send(hidden))

    def _others(self, hidden: Tensor, *_: Any, **__: Any) -> Tensor:
        """The result of the layers of all other ranks for hidden states."""
        self._send(hidden)
        return self._receive(hidden)

    def _send(self, hidden: Tensor) -> None:
        dist.send(hidden.contiguous(), (self._rank + 1) % self._degree)

    def _receive(self, like: Tensor) -> Tensor:
        received = torch.empty_like(like, memory_format=torch.contiguous_format)
        dist.recv(received, (self._rank - 1) % self._degree)
        return received

    def _send_logits(self, head: nn.Module, args: Any, logits: Tensor) -> None:
        if self.sends_logits:
            dist.broadcast(logits.contiguous(), 0)

    def _received_logits(self, logits: Tensor) -> Tensor:
        if self.sends_logits:
            dist.broadcast(logits, 0)
        return logits


def _passed(hidden: Tensor, *_: Any, **__: Any) -> Tensor:
    return hidden


class _Of(nn.Module):
    """A module without weights, of a function."""

    def __init__(self, forward: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.forward = forward


def _empty_(module: nn.Module, forward: Callable[..., Tensor]) -> None:
    """Replace a module's computation, and remove its weights; its class and other attributes stay."""
    module._modules.clear()
    module._parameters.clear()
    module._buffers.clear()
    module.forward = forward
    keep_uninitialized(module)
