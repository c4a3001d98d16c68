"""Gives a model an attention that goes by its name in transformers, until it is undone. Engine process, once."""

from __future__ import annotations

from contextlib import ExitStack

from ..attention.lookup import set_attention
from ..checkpoints.loading import LoadedModel, can_page
from ..transformers_private import attention_name


def page_attention_(loaded: LoadedModel, undo: ExitStack) -> bool:
    """Give a model paged attention, if it can have any; returns whether it has.

    Args:
        undo: gives back the model's own, if it is closed before all of it is popped.
    """
    own = attention_name(loaded.model.config.get_text_config(decoder=True))
    undo.callback(set_attention, loaded.model, own)
    return can_page(loaded)
