"""Finds what runs an encoder: a native program, or torch. Runs in the engine process, once.

A program is taken if it gives the model's own hidden states, which `native` sees to. In a model with a head, the
program takes the place of the base model, and torch computes the rest: what the head then says is compared with what it
said before.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from ...core.engine_info import EngineInfo
from ...core.errors import ModelLoadError
from ..call_errors import CALL_ERRORS
from ..native.api import free_layers, open_native_encoder
from ..runner.opened_model import NATIVE
from ..runner.opening_request import Refusal
from ..torch_backend.linears import on_torch, replace_linears_
from .loading import LoadedEncoder
from .model import EncoderModel, Program
from .settings import EncoderSettings, Head

log = logging.getLogger(__name__)

#: How far a head's numbers may be from the model's own, as a part of the greatest of them, in fp32 and rounded.
_MOST_IN_FP32: Final = 1e-3
_MOST: Final = 0.3


@dataclass(frozen=True)
class ChosenEncoder:
    """A model with what runs it.

    Attributes:
        packs: whether texts of all lengths are computed together, without padding.
    """

    model: EncoderModel
    info: EngineInfo
    packs: bool


def choose_runner(loaded: LoadedEncoder, settings: EncoderSettings, max_tokens: int) -> ChosenEncoder:
    """The model on a native program if that can be, else on torch.

    Args:
        max_tokens: of a batch.

    Raises:
        ModelLoadError: option.kernels=native, and it can't be; or option.quantize, and it is on a GPU.
    """
    info = EngineInfo(
        runner="torch",
        dtype=str(loaded.dtype).removeprefix("torch."),
        quantize=settings.quantize or "none",
        device=str(loaded.device),
        weight_bytes=loaded.weight_bytes,
        max_model_len=loaded.context,
    )
    if settings.quantize is not None and loaded.device.type != "cpu":
        raise ModelLoadError(f"option.quantize={settings.quantize} is for CPUs; the model is on {loaded.device}")
    native = _native(loaded, settings, max_tokens)
    if not isinstance(native, Refusal):
        model, program = native
        info = msgspec.structs.replace(info, runner=NATIVE, weight_bytes=program.weight_bytes)
        return ChosenEncoder(model, info, packs=settings.head is Head.EMBEDDING)
    if settings.kernels == "native":
        raise ModelLoadError(f"option.kernels=native: {native.reason}")
    if settings.quantize is not None:
        replace_linears_(loaded.model, settings.quantize, on_torch)
    info = msgspec.structs.replace(info, refusal=native.reason if native.shown else "")
    for warning in info.warnings:
        log.warning("%s: %s", type(loaded.model).__name__, warning)
    return ChosenEncoder(EncoderModel(loaded, settings), info, packs=False)


def _native(
    loaded: LoadedEncoder, settings: EncoderSettings, max_tokens: int
) -> tuple[EncoderModel, Program] | Refusal:
    """The model on a native program; or why not."""
    if settings.kernels == "torch":
        return Refusal("option.kernels=torch")
    if loaded.device.type != "cpu":
        return Refusal("native kernels are for CPUs")
    base = loaded.model.base_model
    program = open_native_encoder(
        base,
        loaded.dtype,
        settings.quantize,
        longest=loaded.context,
        max_tokens=max(max_tokens, loaded.context),
        threads=torch.get_num_threads(),
    )
    if isinstance(program, Refusal):
        return program
    if settings.head is Head.EMBEDDING:
        model = EncoderModel(loaded, settings, program)
        torch.set_num_threads(1)  # which pools little; its idle threads would only spin beside the program's
    else:
        model = EncoderModel(loaded, settings)
        if fault := _put_in_place(base, program, model, loaded, settings):
            program.close()
            return Refusal(fault, shown=True)
    free_layers(base)
    return model, program


def _put_in_place(
    base: Any, program: Program, model: EncoderModel, loaded: LoadedEncoder, settings: EncoderSettings
) -> str:
    """Have the program compute the hidden states that the model's head reads. Returns why it can't; "": it does."""
    inputs, forms = model.trial_inputs(), list[type[Any]]()
    hook = base.register_forward_hook(lambda _, __, output: forms.append(type(output)))
    try:
        expected = model.run(inputs)
    finally:
        hook.remove()
    if not forms:
        return "its head does not call its base model"
    base.forward = _BaseModel(program, getattr(base, "pooler", None), loaded, forms[0]).forward
    try:
        off = max(
            float(np.abs(one - own).max() / max(np.abs(own).max(), 1e-6))
            for one, own in zip(model.run(inputs), expected, strict=True)
        )
        exact = loaded.dtype is torch.float32 and settings.quantize is None
        fault = "" if off <= (_MOST_IN_FP32 if exact else _MOST) else f"its head's numbers would be off by {off:.1e}"
    except CALL_ERRORS as error:
        fault = f"{type(error).__name__}: {error}"
    if fault:
        del base.forward
    return fault


class _BaseModel:
    """What a head calls in the place of its base model.

    Args:
        pooler: what makes the base model's second output of the hidden states; None: it has none.
        form: the class of the base model's outputs.
    """

    def __init__(self, program: Program, pooler: nn.Module | None, loaded: LoadedEncoder, form: type[Any]) -> None:
        self._program = program
        self._pooler = pooler
        self._form = form
        self._dtype = loaded.dtype
        self._takes_types = loaded.takes_types

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **_: Any,
    ) -> Any:
        """Hidden states (texts, tokens, width) of texts that are filled up behind, zeros there, and what is pooled."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        lengths = mask.sum(1).tolist()
        given = token_type_ids if self._takes_types and token_type_ids is not None else input_ids[:, :0]
        texts, types = (
            [row[:length] for row, length in zip(rows.tolist(), lengths, strict=True)] for rows in (input_ids, given)
        )
        made = self._program.run(texts, types)
        hidden = torch.zeros((*input_ids.shape, made.shape[1]), dtype=self._dtype)
        hidden[mask.bool()] = made.to(self._dtype)
        pooled = {} if self._pooler is None else {"pooler_output": self._pooler(hidden)}
        return self._form(last_hidden_state=hidden, **pooled)
