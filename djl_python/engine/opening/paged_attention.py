"""Gives a model an attention that goes by its name in transformers, for a while. Engine process, once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..checkpoints.loading import LoadedModel, can_page, set_attention


@contextmanager
def paged_attention(loaded: LoadedModel) -> Iterator[bool]:
    """Context in which a model has paged attention, if it can have any; gives whether it has."""
    own = loaded.model.config.get_text_config(decoder=True)._attn_implementation
    try:
        yield can_page(loaded)
    finally:
        set_attention(loaded.model, own)
