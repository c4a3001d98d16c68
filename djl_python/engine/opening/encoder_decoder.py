"""Opens an encoder-decoder model, which torch runs over a paged KV cache. Runs in the engine process, once."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..call_errors import CALL_ERRORS
from ..checkpoints.loading import LoadedModel, can_page
from ..runner.cache_size import size_cache
from ..runner.opened_model import OpenedModel, Scheduling, SequenceMemory, info_of, name_of
from ..runner.opening_request import OpeningRequest, Refusal
from ..runner.probe import Probe, logits_of
from ..torch_backend.encoder_decoder.cross_attention import CrossedDecoder
from ..torch_backend.encoder_decoder.runner import EncoderDecoderRunner
from ..torch_backend.paging import PROBE_BLOCK
from ..torch_backend.torch_cache import TorchCache
from ..transformers_private import attention_name
from .step_memory import step_bytes


@dataclass(frozen=True)
class EncoderDecoder:
    """A model whose attention can be replaced, and whose decoder's layers have cross-attention: T5, BART's kin."""

    def open(self, request: OpeningRequest) -> OpenedModel | Refusal:
        settings, loaded = request.settings, request.loaded
        request = replace(request, reference=request.reference.chosen(loaded))
        with ExitStack() as undo:
            undo.callback(loaded.model.set_attn_implementation, attention_name(loaded.model.config))
            if not can_page(loaded):
                return Refusal("its attention can't be replaced", shown=True)
            try:
                decoder = CrossedDecoder.of(loaded.model, request.length, undo)
            except CALL_ERRORS as error:
                return Refusal(f"{type(error).__name__}: {error}", shown=True)

            @contextmanager
            def probe(blocks: int) -> Iterator[EncoderDecoderRunner]:
                cache = TorchCache(decoder.layers, blocks, PROBE_BLOCK, loaded.dtype, loaded.device)
                yield EncoderDecoderRunner(loaded.model, decoder, cache, loaded.device)

            blocks = 1 + 2 * -(-len(request.reference.probe.ids) // PROBE_BLOCK)
            with probe(blocks) as runner:
                if not request.reference.accepts(runner, blocks, PROBE_BLOCK):
                    return Refusal("its logits are not its own there", shown=True)
            taken = step_bytes(
                settings, loaded, request.length, lambda tokens: probe(2 + 2 * -(-tokens // PROBE_BLOCK))
            )
            shapes = dict(enumerate(decoder.layers))
            # A sequence has as many positions of its encoder as of its decoder.
            size = size_cache(settings, loaded, shapes, 2 * request.length, step_bytes=taken)
            cache = TorchCache(decoder.layers, size.blocks, settings.block_size, loaded.dtype, loaded.device)
            undo.pop_all()
        # Both parts begin with a block of their own.
        length = min(request.length, (size.blocks // 2) * settings.block_size)
        return OpenedModel(
            loaded=loaded,
            runner=EncoderDecoderRunner(loaded.model, decoder, cache, loaded.device),
            memory=SequenceMemory(length, size.blocks, share_prefixes=True),
            scheduling=Scheduling(settings.max_prefill_tokens, whole_prompts=True),
            info=info_of(loaded, settings, "torch-paged", loaded.weight_bytes, size.bytes),
            description=f"{name_of(loaded, settings)} on {loaded.device}, context {length} of each part, "
            f"KV cache {size.blocks} blocks of {settings.block_size} tokens",
            close=cache.close,
        )


@torch.inference_mode()
def exact_logits(loaded: LoadedModel, probe: Probe) -> Tensor:
    """Logits (tokens, rows of the probe) fp32 of a copy of the model in fp32."""
    model = copy.deepcopy(loaded.model).float()
    return logits_of(model, probe, loaded.device)[:, probe.rows]
