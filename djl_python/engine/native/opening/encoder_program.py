"""Opens a loaded encoder as a native program, if it can be read as a recipe. Runs in the engine process, once.

Two programs are compared with the model's own code, on a few texts of different lengths in one run: one in fp32, where
what is not the model is off by a thousand times what rounding costs, and the one that will run, which is seen to be
packed and rounded as it should.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor

from ...call_errors import CALL_ERRORS
from ...checkpoints.rounding import Quantize
from ...devices.free_memory import available_bytes
from ...reading.inference.encoder import read_encoder
from ...reading.recipe.encoder import EncoderRecipe
from ...reading.recipe.primitives import NotUnderstoodError
from ...reading.watching.copies import OwnNumbers, copy_model
from ...reading.watching.encoder_run import run_encoder, types_of
from ...reading.watching.run import layer_list
from ...runner.file_mapping import trim_allocator
from ...runner.opening_request import Refusal
from ..library import KernelsUnavailableError
from ..program.encoder_program import EncoderProgram
from ..thread_pool import FORMATS

log = logging.getLogger(__name__)

#: Tokens of the texts: one is longer than the windows that encoders have, as far as the model takes so many.
_LENGTHS: Final = (5, 1, 40, 17, 160)
#: How far a token's hidden state may be from the model's own, relative to how far those are from their mean: the worst
#: of all tokens in fp32, ...
_MOST_IN_FP32: Final = 1e-3
#: ... and half of the tokens of a program that rounds.
_MOST: Final[dict[Quantize | None, float]] = {None: 0.1, "int8": 0.5, "int4": 1.0}
#: Up to so many tokens, a copy of the model has the whole vocabulary.
_SMALL_VOCABULARY: Final = 4096
_FP32_BYTES: Final = 4
_MEMORY_SHARE: Final = 0.5  # of the memory that is available


@dataclass(frozen=True)
class EncoderRequest:
    """A loaded encoder on a CPU that is to be opened.

    Attributes:
        model: gives hidden states, without a head.
        longest: most tokens of a text.
        max_tokens: most tokens of a run.
    """

    model: Any
    dtype: torch.dtype
    quantize: Quantize | None
    longest: int
    max_tokens: int
    threads: int


def open_program(request: EncoderRequest) -> EncoderProgram | Refusal:
    """The program, which gives the model's own hidden states; or why there is none."""
    try:
        if request.dtype not in FORMATS:
            raise KernelsUnavailableError(f"they do not compute {request.dtype}")
        recipe = read_encoder(request.model, request.longest)
        return _Trial(request).proved(recipe)
    except KernelsUnavailableError as reason:
        log.info("no native kernels: %s; the model runs on torch", reason)
        return Refusal(str(reason))
    except NotUnderstoodError as reason:
        return Refusal(str(reason), shown=True)


def free_layers(model: Any) -> None:
    """Free the weights of an encoder's layers."""
    for layer in layer_list(model):
        for parameter in layer.parameters():
            parameter.data = torch.empty(0, dtype=parameter.dtype)
    trim_allocator()


class _Trial:
    """A few texts, and what the model makes of them.

    The model's tables are narrowed to the texts' tokens in its fp32 copy, if they are large.
    """

    def __init__(self, request: EncoderRequest) -> None:
        self._request = request
        model, rng = request.model, random.Random(0)
        vocabulary = len(model.get_input_embeddings().weight)
        self._texts = [
            rng.choices(range(vocabulary), k=min(length, request.longest, request.max_tokens)) for length in _LENGTHS
        ]
        padding = getattr(model.config, "pad_token_id", None)
        if padding is not None and 0 <= padding < vocabulary:  # which is a token like others within a text, or not
            self._texts[0][len(self._texts[0]) // 2] = padding
        types = [types_of(model, len(text)) for text in self._texts]
        self._types: list[list[int]] = [given or [] for given in types]
        used = sorted({one for text in self._texts for one in text})
        self._rows = torch.tensor(used if vocabulary > _SMALL_VOCABULARY else range(vocabulary))

    def proved(self, recipe: EncoderRecipe) -> EncoderProgram:
        """The program of a recipe.

        Raises:
            NotUnderstoodError: it computes something else than the model.
        """
        request = self._request
        if request.dtype != torch.float32 or request.quantize is not None:
            self._prove(recipe)
        program = self._program(recipe, request.dtype, request.quantize)
        try:
            hidden = self._actual(program, self._texts)
            off = distances(hidden, self._expected(request.model, self._texts))
            if request.dtype == torch.float32 and request.quantize is None:
                _check(float(off.max()), _MOST_IN_FP32)
            else:
                _check(float(off.median()), _MOST[request.quantize])
        except BaseException:
            program.close()
            raise
        return program

    def _prove(self, recipe: EncoderRecipe) -> None:
        """Compare the recipe's program in fp32 with the model in fp32, if there is memory for both."""
        model = self._request.model
        taken = 2 * _FP32_BYTES * sum(each.numel() for each in model.parameters())
        if taken > available_bytes() * _MEMORY_SHARE:
            log.warning("what the native kernels compute is not proved in fp32: that would take %d MiB", taken >> 20)
            return
        places = {int(row): place for place, row in enumerate(self._rows)}
        texts = [[places[one] for one in text] for text in self._texts]
        embedding = recipe.embedding
        skipped = None if embedding.skipped_id is None else places.get(embedding.skipped_id)
        narrowed = replace(recipe, embedding=replace(embedding, table=embedding.table[self._rows], skipped_id=skipped))
        copied = model if self._request.dtype == torch.float32 else copy_model(model, OwnNumbers(self._rows)).model
        expected = self._expected(copied, self._texts if copied is model else texts)
        program = self._program(narrowed, torch.float32, None)
        try:
            _check(float(distances(self._actual(program, texts), expected).max()), _MOST_IN_FP32)
        finally:
            program.close()

    def _program(self, recipe: EncoderRecipe, dtype: torch.dtype, quantize: Quantize | None) -> EncoderProgram:
        request = self._request
        most = max(request.max_tokens, sum(map(len, self._texts)))
        return EncoderProgram(recipe, dtype, quantize, max_tokens=most, threads=request.threads)

    def _actual(self, program: EncoderProgram, texts: Sequence[Sequence[int]]) -> Tensor:
        return program.run(texts, self._types).clone()

    @torch.inference_mode()
    def _expected(self, model: Any, texts: Sequence[Sequence[int]]) -> Tensor:
        """The model's own hidden states of each text by itself, (tokens, width) fp32."""
        try:
            made = [run_encoder(model, text, types or None) for text, types in zip(texts, self._types, strict=True)]
        except CALL_ERRORS as error:
            raise NotUnderstoodError(f"{type(error).__name__}: {error}") from error
        return torch.cat([each[0] for each in made])


def distances(actual: Tensor, expected: Tensor) -> Tensor:
    """How far each token's hidden state is from the expected one, (tokens,); both (tokens, width) fp32.

    0: equal; about 1 and more: unrelated; infinite where hidden states are not numbers.
    """
    apart = (expected - expected.mean(0)).norm(dim=-1).median().clamp_min(1e-6)
    off: Tensor = ((actual - expected).norm(dim=-1) / apart).nan_to_num(nan=torch.inf)
    return off


def _check(off: float, most: float) -> None:
    if off > most:
        raise NotUnderstoodError(f"its hidden states are not the model's own, but off by {off:.1e}")
    log.info("checked against the model's own code: hidden states are off by %.1e (0: equal, 1: unrelated)", off)
