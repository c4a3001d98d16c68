"""Runs a recipe's operations. Runs in the engine process.

The list is made once; a step only changes `StepInputs` (the tokens, their cache slots, the wanted rows) and the address
of the logits. Weights are packed into panels as the kernels read them; the model's own copies can be dropped after
that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor, nn

from ...adapters.peft_files import LoraAdapter
from ...checkpoints.rounding import Quantize
from ...reading.recipe.decoder import Recipe
from ...reading.recipe.primitives import NotUnderstoodError
from ...sampling.row_sampler import SampledTokens
from ..abi.decoder import LinearOp
from ..abi.enums import PANEL
from ..abi.operations import OperationArray
from ..abi.step_inputs import StepInputs
from ..abi.structures import Operation
from ..memory import Arena, PrefaultedMemory, as_tensor
from ..prefault import PrefaultedRegions, cache_prefault_bytes
from ..thread_pool import ThreadPool
from .adapters import ProgramAdapters
from .builders.attention import CacheLayout
from .builders.builder import ProgramBuilder
from .builders.decoder import build_decoder
from .builders.states import StateLayout
from .rescoring import Rescorer
from .row_sampling import RowSamplings
from .step_arrays import StepArrays

_KEPT_ROWS: Final = 64  # rows of logits in a kept buffer; prompt logprobs need more, and get a new one


class _Operations:
    """A list of operations that ends with the lm_head's product, as the kernels run it.

    Attributes:
        head: that product, in place.
        rescorer: runs the list with `rescoring` in the place of the head, if there is such.
        late_from: index of the first operation that is only needed for logits.
    """

    def __init__(self, operations: list[Operation], rescoring: list[Operation], late_from: int) -> None:
        self.array = OperationArray(operations)
        self.head = self.array.view(-1, LinearOp)
        self.rescorer = Rescorer([*operations[:-1], *rescoring]) if rescoring else None
        self.late_from = late_from


class Program:
    """A decoder, its packed weights, its cache and its states.

    Args:
        dtype: bf16 or fp32, of weights, cache and the activations between matrix products.
        quantize: quantize weights of matrix products (but few that decide much), and their inputs, to integers.
        blocks, block_size: of the KV cache.
        states: number of slots, each for one sequence's states of all layers.
        max_tokens: maximum tokens of a step.
        prefaulted: memory for weights and cache.
        names: of the model's modules, which adapters change; None: it will have no adapters.

    Attributes:
        rescorer: samples tokens without all logits; None if that wouldn't be faster.
        adapters: what its slots hold.
        cache: memory for keys and values.
    """

    def __init__(
        self,
        recipe: Recipe,
        dtype: torch.dtype,
        quantize: Quantize | None = None,
        *,
        blocks: int,
        block_size: int,
        states: int = 0,
        max_tokens: int,
        threads: int,
        prefaulted: PrefaultedRegions | None = None,
        names: Mapping[nn.Module, str] | None = None,
    ) -> None:
        self.pool = ThreadPool(threads)
        self._bf16 = dtype == torch.bfloat16
        self._block_size = block_size
        self._block_bytes = sum(attention.shape.block_bytes(block_size, dtype) for attention in recipe.caches)
        size = max(1, blocks * self._block_bytes)
        self.cache = PrefaultedMemory(
            size,
            cache_prefault_bytes(size),
            None if prefaulted is None else (as_tensor(prefaulted.cache), prefaulted.cache_prefaulted),
        )
        self._max_tokens = max_tokens
        self.vocabulary = len(recipe.head.weight)
        self.short_context = recipe.short_context
        self.heads_per_kv_head = max((each.heads // each.kv_heads for each in recipe.attentions), default=1)
        self._state_bytes = recipe.state_bytes(dtype)
        size = max(1, states * self._state_bytes)
        self._states = PrefaultedMemory(size, cache_prefault_bytes(size), name="state memory")
        memory = Arena(None if prefaulted is None else as_tensor(prefaulted.weights))
        self._builder = ProgramBuilder(dtype, quantize, self.pool, memory, recipe.width, max_tokens)
        try:
            rescoring = build_decoder(
                self._builder,
                recipe,
                CacheLayout(self.cache.bytes.data_ptr(), block_size),
                StateLayout(self._states.bytes.data_ptr()),
            )
        except NotUnderstoodError:
            self.close()
            raise
        memory.close()
        self.weight_bytes = self._builder.weight_bytes
        self._plain = _Operations(self._builder.operations, rescoring, self._builder.late_from)
        self._rescoring = rescoring
        self._with_adapters: _Operations | None = None
        self.adapters = ProgramAdapters(self._builder.adaptable if names else [], names or {}, dtype, max_tokens)
        self.rescorer = self._plain.rescorer
        self._head_alone = OperationArray([self._plain.head])
        # First-touch page faults cost more than the writes themselves, so the buffers are kept.
        self._logits = torch.empty(_KEPT_ROWS, self.vocabulary)
        self._kept_maxima = self._maxima = torch.empty(_KEPT_ROWS, -(-self.vocabulary // PANEL))
        self._made = self._logits[:0]

    def run(self, step: StepArrays) -> Tensor:
        """Run a step; returns the logits of the wanted rows, (rows, vocabulary) fp32, valid until the next step.

        Raises:
            ValueError: the step has more tokens than the program was made for.
        """
        wanted = len(step.rows)
        logits = self._make_room(wanted)
        operations = self._operations_of(step)
        self._aim(operations.head, logits)
        count = None if wanted else operations.late_from
        with self._begun(step) as (given, late):
            self.pool.run(operations.array, given, count=count, late=late, bf16=self._bf16)
        self._made = logits
        return logits

    def pick(self, step: StepArrays, samplings: RowSamplings) -> SampledTokens | Tensor:
        """Run a step of a program with a rescorer, and without adapters that change the head.

        Args:
            samplings: how each wanted row's token is sampled, none of them from changed scores.

        Returns:
            What is sampled for each wanted row; or, where not all could be told, the logits, as `run`.

        Raises:
            ValueError: as `run`.
        """
        rescorer = self._operations_of(step).rescorer
        assert rescorer is not None
        logits = self._make_room(len(step.rows))
        with self._begun(step) as (given, late):
            chosen = rescorer.run(self.pool, given, late, samplings, logits)
            if chosen is not None:
                return chosen
            self._aim(self._head_alone.view(0, LinearOp), logits)
            self.pool.run(self._head_alone, given, late=late, bf16=self._bf16)
        self._made = logits
        return logits

    def load_adapter(self, slot: int, adapter: LoraAdapter) -> None:
        """As `ProgramAdapters.load`, between two steps."""
        self._with_adapters = None
        self.adapters.load(slot, adapter)

    def unload_adapter(self, slot: int) -> None:
        """As `ProgramAdapters.unload`, between two steps."""
        self._with_adapters = None
        self.adapters.unload(slot)

    @property
    def adapts_head(self) -> bool:
        """Whether a loaded adapter changes the lm_head."""
        return self.adapters.changes(self._builder.operations[-1])

    def _operations_of(self, step: StepArrays) -> _Operations:
        """The operations of a step: with what loaded adapters add, if one of its tokens has an adapter."""
        if step.adapters is None:
            return self._plain
        if self._with_adapters is None:
            given, late_from = self._builder.operations, self._builder.late_from
            early, rest = self.adapters.operations(given[:late_from], given[late_from:])
            rescoring = [] if self.adapts_head else self._rescoring
            self._with_adapters = _Operations([*early, *rest], rescoring, len(early))
            if self._with_adapters.rescorer is not None and self.rescorer is not None:
                self._with_adapters.rescorer.patience = self.rescorer.patience
        return self._with_adapters

    def _aim(self, head: LinearOp, logits: Tensor) -> None:
        """Have the lm_head's product write to `logits`, and `_maxima`."""
        head.output.out, head.statistics.maxima = logits.data_ptr(), self._maxima.data_ptr()

    def _make_room(self, rows: int) -> Tensor:
        """Memory for so many rows of logits, and `_maxima` for their panels."""
        self._maxima = self._kept_maxima if rows <= _KEPT_ROWS else torch.empty(rows, self._maxima.shape[1])
        return self._logits[:rows] if rows <= _KEPT_ROWS else torch.empty(rows, self.vocabulary)

    @contextmanager
    def _begun(self, step: StepArrays) -> Iterator[tuple[StepInputs, StepInputs]]:
        """Context of a step: what the operations are given, and what those are given that work on the wanted rows."""
        if len(step.ids) > self._max_tokens:
            raise ValueError(f"a step of {len(step.ids)} tokens; the program was made for {self._max_tokens}")
        given, late = (each.step_inputs(self._block_size, self._block_bytes) for each in (step.tokens, step.wanted))
        given.wanted = len(step.rows)
        if step.adapters is not None:
            step.adapters.bind(given)
        if step.wanted_adapters is not None:
            step.wanted_adapters.bind(late)
        for name in ("ids", "slots", "rows"):
            setattr(given, name, getattr(step, name).ctypes.data)
        if step.states is not None:
            step.states.bind(given, self._state_bytes)
            self._states.used_to((step.states.last_slot + 1) * self._state_bytes)
        self.cache.used_to((int(step.slots.max()) // self._block_size + 1) * self._block_bytes)
        yield given, late
        self.cache.rest()
        self._states.rest()

    def maxima_of(self, logits: Tensor) -> int | None:
        """Address of the maxima of each panel of these rows, if they are the last step's logits; else None."""
        first, rest = divmod(logits.data_ptr() - self._made.data_ptr(), 4 * self.vocabulary)
        if rest or not 0 <= first <= len(self._made) - len(logits):
            return None
        return int(self._maxima[first].data_ptr())

    @property
    def resident_blocks(self) -> int:
        """Blocks of the cache, from the first on, whose memory has been taken."""
        return self.cache.taken // max(1, self._block_bytes)

    def close(self) -> None:
        """End the threads."""
        self.cache.close()
        self._states.close()
        self.pool.close()
