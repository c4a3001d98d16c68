"""Our attention in transformers' table of attention functions. Runs in the engine process.

transformers' models look their attention up by name. Under the name `PAGED` they find `paged_attention`, which passes
each call to the function of the current `answering` context: one that reads and writes a paged cache, or one that
observes a model while it is opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol

from torch import Tensor, nn

from ..transformers_private import attention_name
from .parameters import AttentionParams

PAGED: Final = "djl_paged"


class AttentionFunction(Protocol):
    """Answers a layer's call of its attention."""

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        how: AttentionParams,
        mask: Tensor | None,
        others: Mapping[str, Any],
    ) -> Tensor:
        """Attend; the result is (1, T, heads, value_dim).

        Args:
            module: the attention layer.
            query: (1, heads, T, key_dim); key, value: (1, kv_heads, T, dim): this step's tokens, flat.
            mask: the result of `AttentionMaskInterface`'s function for `PAGED`, or the model's own mask.
            others: further arguments that the model passes to every attention.
        """
        ...


_answering: AttentionFunction | None = None


@contextmanager
def answering(function: AttentionFunction) -> Iterator[None]:
    """Context in which models whose attention is `PAGED` may run: `function` answers their layers' calls."""
    global _answering
    before, _answering = _answering, function
    try:
        yield
    finally:
        _answering = before


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls in each layer: its result, and no attention weights."""
    assert _answering is not None, "a model with paged attention runs inside answering()"
    how = AttentionParams(
        query.shape[-1] ** -0.5 if scaling is None else scaling, sliding_window or 0, softcap or 0.0, s_aux
    )
    return _answering(module, query, key, value, how, attention_mask, others), None


def register() -> None:
    """Register `PAGED` with transformers. It is in no table of masks: models that use it build no mask."""
    from transformers import AttentionInterface

    AttentionInterface.register(PAGED, paged_attention)


def set_attention(model: Any, name: str) -> None:
    """Give the language model one of transformers' attention functions; an image encoder keeps its own.

    Raises:
        ValueError: the model can't use this one.
    """
    config, text = model.config, model.config.get_text_config(decoder=True)
    if attention_name(text) == name:
        return
    if text is config:
        model.set_attn_implementation(name)
        return
    parts = [part for part in config.sub_configs if getattr(config, part, None) is text]
    if not parts:
        raise ValueError(f"{type(model).__name__} keeps its language model's configuration where it is not looked for")
    model.set_attn_implementation({parts[0]: name})
