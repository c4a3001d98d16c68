"""Gives a model an attention that goes by its name in transformers, until it is undone. Engine process, once."""

from __future__ import annotations

from contextlib import ExitStack

from ..checkpoints.loading import LoadedModel, can_page, set_attention


def page_attention_(loaded: LoadedModel, undo: ExitStack) -> bool:
    """Give a model paged attention, if it can have any; returns whether it has.

    Args:
        undo: gives back the model's own, if it is closed before all of it is popped.
    """
    own = loaded.model.config.get_text_config(decoder=True)._attn_implementation
    undo.callback(set_attention, loaded.model, own)
    return can_page(loaded)
