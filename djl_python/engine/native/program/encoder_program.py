"""Runs an encoder's operations on texts in a row. Runs in the engine process."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from ...checkpoints.rounding import Quantize
from ...reading.recipe.encoder import EncoderRecipe
from ...reading.recipe.primitives import NotUnderstoodError
from ..abi.operations import OperationArray
from ..memory import Arena, on_huge_pages
from ..thread_pool import ThreadPool
from .builders.builder import ProgramBuilder
from .builders.encoder import build_encoder
from .text_arrays import BLOCK, TextArrays


class EncoderProgram:
    """An encoder and its packed weights.

    Args:
        dtype: bf16 or fp32, of weights and the activations between matrix products.
        quantize: quantize weights of matrix products, and their inputs, to integers.
        max_tokens: most tokens of a run.

    Attributes:
        weight_bytes: bytes of weight matrices that a run reads.
        vectors: what the kernels were built for.

    Raises:
        KernelsUnavailableError: no kernels, or fewer threads than asked for.
        NotUnderstoodError: something is of a size that the kernels don't support.
    """

    def __init__(
        self, recipe: EncoderRecipe, dtype: torch.dtype, quantize: Quantize | None, *, max_tokens: int, threads: int
    ) -> None:
        attention = recipe.attentions[0]
        self._pool = ThreadPool(threads, often=True)
        self._bf16 = dtype == torch.bfloat16
        self._embedding = recipe.embedding
        self._heads_per_kv_head = attention.heads // attention.kv_heads
        self._block_bytes = attention.shape.block_bytes(BLOCK, dtype)
        self._keys = on_huge_pages(max_tokens * self._block_bytes)  # as many texts as tokens, each with a block
        memory = Arena()
        builder = ProgramBuilder(dtype, quantize, self._pool, memory, recipe.width, max_tokens)
        try:
            build_encoder(builder, recipe, self._keys.data_ptr(), BLOCK)
        except NotUnderstoodError:
            self.close()
            raise
        memory.close()
        self._builder = builder  # keeps what the operations point to
        self._operations = OperationArray(builder.operations)
        held = (ctypes.c_float * (max_tokens * recipe.width)).from_address(builder.hidden)
        self._hidden = torch.frombuffer(held, dtype=torch.float32).view(max_tokens, recipe.width)
        self.weight_bytes = builder.weight_bytes
        self.vectors = self._pool.vectors

    def run(self, texts: Sequence[Sequence[int]], types: Sequence[Sequence[int]]) -> Tensor:
        """Hidden states of the texts' tokens, text after text: (tokens, width) fp32, valid until the next run.

        Args:
            texts: ids.
            types: of each text's tokens; where there are fewer than tokens, the rest is of type 0.

        Raises:
            ValueError: there are more tokens than the program was made for.
        """
        arrays = TextArrays.of(texts, types, self._embedding, self._heads_per_kv_head)
        tokens = len(arrays.ids)
        if tokens > len(self._hidden):
            raise ValueError(f"{tokens} tokens; the program was made for {len(self._hidden)}")
        self._pool.run(self._operations, arrays.step_inputs(self._block_bytes), bf16=self._bf16)
        return self._hidden[:tokens]

    def close(self) -> None:
        """End the threads; nothing runs after that."""
        self._pool.close()
