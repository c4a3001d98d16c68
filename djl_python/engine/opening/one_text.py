"""Opens a model whose layers keep keys and values of one text themselves. Runs in the engine process, once."""

from __future__ import annotations

from ..runner.cache_size import size_cache
from ..runner.opened_model import OpenedModel, Scheduling, SequenceMemory, info_of, name_of
from ..runner.opening_request import OpeningRequest, Refusal
from ..torch_backend.one_text_runner import OneTextRunner


class OneText:
    """A model that a library has changed so (`LoadedModel.keeps_one_text`): sequences run to their end in turn."""

    def open(self, request: OpeningRequest) -> OpenedModel | Refusal:
        settings, loaded = request.settings, request.loaded
        runner = OneTextRunner(loaded.model, loaded.device)
        if not request.reference.accepts(runner, 2, len(request.reference.probe.ids)):
            return Refusal("its logits are not its own as it goes on")
        # The cache is the library's, and has no blocks: their number only bounds the tokens of a sequence.
        size = size_cache(settings, loaded, {}, request.length)
        how = "a cache of the library's, one sequence after the other"
        return OpenedModel(
            loaded=loaded,
            runner=runner,
            memory=SequenceMemory(size.length, size.blocks, share_prefixes=False),
            scheduling=Scheduling(max_prefill_tokens=size.length, whole_prompts=True, sequences=1),
            info=info_of(loaded, settings, "library", loaded.weight_bytes, size.bytes),
            description=f"{name_of(loaded, settings)} on {loaded.device}, context {size.length}, {how}",
        )
