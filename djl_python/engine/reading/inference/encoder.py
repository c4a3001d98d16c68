"""Derives an encoder's recipe from a watched run, as `decoder` does a decoder's. Runs in the engine process, at load.

It recognizes models whose stream begins with a sum of tables, by token, by position and by type, with a norm or not;
whose layers are those of decoders (`layer`), each with one attention that transformers looks up by name; and that end
with a norm or not. Other sums before the first layer, biases by relative position, and attention inside of a model's
own modules (DeBERTa, MPNet) are refused.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...attention.lookup import set_attention
from ...call_errors import CALL_ERRORS
from ...transformers_private import attention_name
from ..comparison import factor_of, rounded_factor, same
from ..recipe.decoder import Mlp
from ..recipe.encoder import EncoderRecipe, TextEmbedding
from ..recipe.mixers import Attention
from ..recipe.primitives import Norm, NotUnderstoodError
from ..watching.copies import Copy, RandomNumbers, copy_model
from ..watching.encoder_run import IDS, WatchedEncoder, run_encoder, watch_encoder
from ..watching.run import ModuleCall
from .layer import read_layer
from .layer_record import LayerRecord
from .norms import norm_call
from .rotary import rotary_candidates


def read_encoder(model: Any, longest: int) -> EncoderRecipe:
    """Read the recipe of a model that gives hidden states, without a head.

    Args:
        longest: most tokens of a text.

    Raises:
        NotUnderstoodError: something could not be explained; the message says what.
    """
    try:
        return _read(model, longest)
    except CALL_ERRORS as error:  # it is built or called unlike the encoders known here
        raise NotUnderstoodError(f"{type(error).__name__}: {error}") from error


@torch.inference_mode()
def _read(model: Any, longest: int) -> EncoderRecipe:
    if attention_name(model.config) == "eager":  # transformers has another for all models that look it up
        raise NotUnderstoodError("its attention is inside of its own modules")
    copy = copy_model(model, RandomNumbers())
    watched = watch_encoder(copy, longest)
    seen = watched.seen
    rotaries = rotary_candidates(copy.model, seen, longest)
    layers = []
    for index in range(len(seen.layers)):
        record = LayerRecord(seen, index)
        if len(record.attention_calls) != 1:
            raise NotUnderstoodError(f"layer {index}: its attention is not looked up by name, once")
        try:
            layers.append(read_layer(record, rotaries, seen.positions, None))
        except NotUnderstoodError as reason:
            raise NotUnderstoodError(f"layer {index}: {reason}") from reason
    recipe = EncoderRecipe(_read_embedding(copy, watched), layers, _read_end(watched))
    _check(recipe)
    return recipe


def _check(recipe: EncoderRecipe) -> None:
    """Check that the layers are of the kinds that encoders have."""
    for index, layer in enumerate(recipe.layers):
        plain = len(layer.mixers) == 1 and isinstance(layer.mixers[0].body, Attention) and layer.factor == 1
        if not plain or (layer.mlp is not None and not isinstance(layer.mlp.body, Mlp)):
            raise NotUnderstoodError(f"layer {index}: it is not one attention and one MLP")
    shapes = {each.shape for each in recipe.attentions}
    if len(shapes) != 1 or any(each.reads is not None for each in recipe.attentions):
        raise NotUnderstoodError("layers whose keys and values have different shapes, or are shared")


def _read_embedding(copy: Copy, watched: WatchedEncoder) -> TextEmbedding:
    seen = watched.seen
    start = seen.layers[0].input.float()
    before = seen.module_calls[: seen.layers[0].module_calls.start]
    lookups = [call for call in before if isinstance(call.copied, nn.Embedding)]
    words = next((call for call in lookups if call.copied is copy.model.get_input_embeddings()), None)
    if words is None:
        raise NotUnderstoodError("the embedding is not a table")
    rows = nn.functional.embedding(words.x, words.copied.weight).float()
    norm = next((n for call in before if (n := norm_call(call)) is not None and same(call.result, start)), None)
    stream = start if norm is None else norm.call.x.float()
    if rows.shape != stream.shape:
        raise NotUnderstoodError("the embedding is narrower than the layers")
    added = torch.zeros_like(stream)
    positions: ModuleCall | None = None
    types: Tensor | None = None
    for call in lookups:
        if call is words:
            continue
        places = call.x.flatten().tolist()
        if places == watched.types or (watched.types is None and not any(places)):
            types = call.module.weight.data
        elif places == list(range(places[0], places[0] + len(IDS))):
            positions = call
        else:
            raise NotUnderstoodError("tokens are looked up in a table by something else than position and type")
        added = added + call.result.float()
    scale = rounded_factor(factor_of(rows, stream - added))
    if not same(scale * rows + added, stream):
        raise NotUnderstoodError("the first layer reads something else than embedded tokens, positions and types")
    first_place = 0 if positions is None else int(positions.x.flatten()[0])
    return TextEmbedding(
        table=words.module.weight.data,
        scale=scale,
        positions=None if positions is None else positions.module.weight.data,
        first_place=first_place,
        skipped_id=None if positions is None else _skipped_id(copy.model, positions, first_place),
        types=types,
        norm=None if norm is None else norm.norm,
    )


def _skipped_id(model: Any, positions: ModuleCall, first_place: int) -> int | None:
    """The id of padding, if a text's tokens with that id do not count as positions."""
    padding = getattr(model.config, "pad_token_id", None)
    if padding is None or not 0 <= padding < len(model.get_input_embeddings().weight):
        return None
    position_ids: list[list[int]] = []
    hook = positions.copied.register_forward_hook(lambda _, given, __: position_ids.append(given[0].flatten().tolist()))
    set_attention(model, "eager")  # the watched one tells nothing outside of its run
    try:
        run_encoder(model, [*IDS[:2], padding, *IDS[2:4]])
    finally:
        hook.remove()
    places = [place - first_place for place in position_ids[0]]
    if places == [0, 1, 2, 3, 4]:
        return None
    if places == [0, 1, -1, 2, 3]:
        return int(padding)
    raise NotUnderstoodError("positions that padding changes in an unknown way")


def _read_end(watched: WatchedEncoder) -> Norm | None:
    """The norm behind the last layer, if there is one."""
    end = watched.seen.layers[-1].result
    if same(watched.hidden, end):
        return None
    after = watched.seen.module_calls[watched.seen.layers[-1].module_calls.stop :]
    for call in after:
        norm = norm_call(call)
        if norm is not None and same(call.x, end) and same(call.result, watched.hidden):
            return norm.norm
    raise NotUnderstoodError("the hidden states are not the last layer's result, normed or not")
