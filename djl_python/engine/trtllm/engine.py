"""Runs TensorRT-LLM. The only module that imports it.

Runs in the engine process, in its asyncio loop; TensorRT-LLM computes in processes of its own, which end with this one.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import tensorrt_llm
import torch
from tensorrt_llm import LLM
from tensorrt_llm import SamplingParams as TrtllmSampling
from tensorrt_llm.llmapi import GuidedDecodingParams, KvCacheConfig, RequestError, TorchLlmArgs

from ...config import read_json_object
from ...core.engine_info import EngineInfo, EngineStats
from ...core.errors import GenerationError, ModelLoadError, ParameterError
from ...core.sequence_request import SequenceRequest
from ...core.types import SamplingParams, TokenEvent
from ..interface import AsyncEngine, Progress
from .arguments import TrtllmSettings, end_ids, llm_arguments, stated_context, vocabulary_size
from .sampling import grammar_arguments, sampling_arguments, token_events

log = logging.getLogger(__name__)


class TrtllmEngine(AsyncEngine):
    """A `tensorrt_llm.LLM`, by the interface of an `AsyncEngine`."""

    def __init__(self, llm: LLM, arguments: dict[str, Any], settings: TrtllmSettings) -> None:
        self._llm = llm
        self._sequences = 0
        path = Path(settings.model_path)
        config, generation = read_json_object(path / "config.json"), path / "generation_config.json"
        self._ends = end_ids(config, read_json_object(generation) if generation.is_file() else {})
        length = arguments.get("max_seq_len") or llm.args.max_seq_len or stated_context(config)
        if length is None:
            raise ModelLoadError(f"{path}/config.json does not say how long texts may be: set option.max_model_len")
        self.max_model_len = length
        self.max_batch_size = arguments["max_batch_size"]
        self.vocabulary = vocabulary_size(config)
        self.info = EngineInfo(
            runner="trtllm",
            dtype=str(llm.args.dtype),
            device="cuda",
            shares_prefixes=arguments["kv_cache_config"].get("enable_block_reuse", True),
        )
        self.description = f"TensorRT-LLM {tensorrt_llm.__version__}, untested on hardware: {self.info.summary}"

    @classmethod
    async def open(cls, settings: TrtllmSettings, progress: Progress) -> TrtllmEngine:  # type: ignore[override]
        """Start TensorRT-LLM with the settings.

        Raises:
            ModelLoadError: it does not take an option's value; in its words.
        """
        progress("starting TensorRT-LLM", 0, 0)
        known, of_the_cache = TorchLlmArgs.model_fields.keys(), KvCacheConfig.model_fields.keys()
        arguments, unknown = llm_arguments(settings, known, of_the_cache, max(1, torch.cuda.device_count()))
        if unknown:
            log.warning("options that neither this server nor TensorRT-LLM has: %s", ", ".join(unknown))
        try:
            llm = LLM(**arguments)
        except ValueError as exc:
            raise ModelLoadError(f"TensorRT-LLM does not take an option: {exc}") from exc
        return cls(llm, arguments, settings)

    async def generate(self, request: SequenceRequest) -> AsyncGenerator[TokenEvent, None]:
        prompt_ids, sampling = request.prompt_ids, request.sampling
        self.check_prompt(prompt_ids)
        try:
            result = self._llm.generate_async(
                prompt_ids,
                self._sampling(sampling, len(prompt_ids)),
                streaming=True,
                cache_salt=request.cache_salt or None,
            )
        except ValueError as exc:  # its error for a faulty request
            raise ParameterError(str(exc), "") from exc
        reported, ended = 0, False
        self._sequences += 1
        try:
            async for output in result:
                for event in token_events(request.id, output.outputs[0], reported, sampling, self._ends):
                    reported, ended = reported + 1, event.finish is not None
                    yield event
        except RequestError as exc:
            raise GenerationError(str(exc)) from exc
        finally:
            self._sequences -= 1
            if not ended:
                result.abort()

    def _sampling(self, sampling: SamplingParams, prompt_tokens: int) -> TrtllmSampling:
        arguments = sampling_arguments(sampling, self._ends)
        arguments["max_tokens"] = min(arguments["max_tokens"], self.max_model_len - prompt_tokens)
        made = TrtllmSampling(**arguments)
        if sampling.grammar is not None:
            made.guided_decoding = GuidedDecodingParams(**grammar_arguments(sampling.grammar))
        if sampling.logit_bias:
            made.embedding_bias = self._bias(sampling.logit_bias)
        return made

    def _bias(self, biases: dict[int, float]) -> torch.Tensor:
        """The additions to the logits, float32, for all the ids that the model takes."""
        bias = torch.zeros(self.vocabulary or 1 + max(biases), dtype=torch.float32)
        bias[list(biases)] = torch.tensor(list(biases.values()))
        return bias

    @property
    def stats(self) -> EngineStats:
        """Only the number of sequences: TensorRT-LLM reports its cache only if each step is measured, which slows it
        down.
        """
        running = min(self._sequences, self.max_batch_size)
        return EngineStats(running=running, waiting=self._sequences - running)

    def isolate(self, cause: Exception) -> None:
        """Any error but a `RequestError`, which is one request's, is TensorRT-LLM's end."""
        raise cause

    async def close(self) -> None:
        """End TensorRT-LLM's processes."""
        self._llm.shutdown()
