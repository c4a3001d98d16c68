"""The classes of `tensorrt_llm.llmapi` that are used. Names and defaults are the real one's."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoModelForCausalLM

#: So that a sequence is not over before it can be aborted.
_STEP_S = 0.002


class RequestError(RuntimeError):
    """One request failed."""


class TorchLlmArgs:
    """The arguments of `LLM`."""

    model_fields = dict.fromkeys(
        """model dtype trust_remote_code tensor_parallel_size pipeline_parallel_size max_batch_size max_seq_len
        max_num_tokens enable_chunked_prefill disable_overlap_scheduler guided_decoding_backend scheduler_config
        moe_config cuda_graph_config kv_cache_config attn_backend stream_interval moe_expert_parallel_size""".split()
    )


class KvCacheConfig:
    """The fields of `kv_cache_config`."""

    model_fields = dict.fromkeys(
        "enable_block_reuse max_tokens free_gpu_memory_fraction host_cache_size tokens_per_block dtype".split()
    )


@dataclass(kw_only=True)
class GuidedDecodingParams:
    json: str | None = None
    regex: str | None = None
    json_object: bool = False
    structural_tag: str | None = None


@dataclass(kw_only=True)
class SamplingParams:
    end_id: int | None = None
    max_tokens: int = 32
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    embedding_bias: torch.Tensor | None = None
    top_k: int | None = None
    top_p: float | None = None
    temperature: float | None = None
    logprobs: int | None = None
    guided_decoding: GuidedDecodingParams | None = None
    ignore_eos: bool = False
    detokenize: bool = True

    @property
    def greedy(self) -> bool:
        nothing = self.temperature is None and self.top_p is None and self.top_k is None
        return nothing or self.top_k == 1 or self.top_p == 0 or self.temperature == 0


@dataclass
class Logprob:
    logprob: float
    rank: int


@dataclass
class CompletionOutput:
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | None = None


class RequestOutput:
    """A sequence: an asynchronous iterator of itself, with another token each time."""

    def __init__(self, llm: LLM, prompt: list[int], params: SamplingParams) -> None:
        self.outputs = [CompletionOutput()]
        self.prompt, self.params = prompt, params
        self.ids = list(prompt)
        self.aborted = False
        self._llm = llm
        self._loop = asyncio.get_running_loop()
        self._arrived: asyncio.Queue[tuple[int, dict[int, Logprob], str | None] | Exception] = asyncio.Queue()

    def tell(self, arrived: tuple[int, dict[int, Logprob], str | None] | Exception) -> None:
        """Called in the thread that computes."""
        self._loop.call_soon_threadsafe(self._arrived.put_nowait, arrived)

    def __aiter__(self) -> RequestOutput:
        return self

    async def __anext__(self) -> RequestOutput:
        (output,) = self.outputs
        if output.finish_reason is not None:
            raise StopAsyncIteration
        arrived = await self._arrived.get()
        if isinstance(arrived, Exception):
            raise arrived
        token, logprobs, finish = arrived
        output.token_ids.append(token)
        if self.params.logprobs:
            output.logprobs.append(logprobs)
        output.finish_reason = finish
        if finish == "stop" and token in (self.params.stop_token_ids or ()):
            output.stop_reason = token
            if not self.params.include_stop_str_in_output:
                output.token_ids.pop()
        return self

    def abort(self) -> None:
        self.aborted = True


class LLM:
    """Generates in a thread of its own, a token of each of the first sequences in turn."""

    def __init__(self, model: str, **arguments: Any) -> None:
        for name in arguments:
            if name not in TorchLlmArgs.model_fields:
                raise ValueError(f"LLM got invalid argument: {name}")
        for name in arguments.get("kv_cache_config", {}):
            if name not in KvCacheConfig.model_fields:
                raise ValueError(f"kv_cache_config.{name}: Extra inputs are not permitted")
        if not Path(model, "config.json").is_file():
            raise ValueError(f"there is no config.json in {model}")
        self.args = SimpleNamespace(**{"dtype": "auto", "max_seq_len": None, **arguments})
        torch.set_num_threads(1)
        self._model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        self._longest = arguments.get("max_seq_len") or self._model.config.max_position_embeddings
        self._sequences: list[RequestOutput] = []
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def generate_async(
        self, inputs: list[int], sampling_params: SamplingParams, *, streaming: bool, cache_salt: str | None = None
    ) -> RequestOutput:
        if self._ended:
            raise RuntimeError("LLM is shutting down")
        if not streaming:
            raise NotImplementedError("the tests' TensorRT-LLM only streams")
        if len(inputs) > (getattr(self.args, "max_num_tokens", None) or 8192):
            raise ValueError(f"The sum of prompt length ({len(inputs)}) should not exceed max_num_tokens")
        made = RequestOutput(self, inputs, sampling_params)
        with self._changed:
            self._sequences.append(made)
            self._changed.notify()
        return made

    def shutdown(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._sequences or self._ended)
                if self._ended:
                    return
                self._sequences = [one for one in self._sequences if not one.aborted]
                batch = self._sequences[: self.args.max_batch_size]
            finished = [one for one in batch if self._step(one)]
            with self._changed:
                self._sequences = [one for one in self._sequences if one not in finished]
            time.sleep(_STEP_S)

    @torch.inference_mode()
    def _step(self, one: RequestOutput) -> bool:
        """Whether this token, or error, was the sequence's last."""
        params = one.params
        if params.guided_decoding is not None:
            one.tell(RequestError("the tests' TensorRT-LLM has no grammars"))
            return True
        logits = self._model(torch.tensor([one.ids])).logits[0, -1].float()
        if params.embedding_bias is not None:
            logits = logits + params.embedding_bias
        token = int(logits.argmax()) if params.greedy else self._drawn(logits, params)
        one.ids.append(token)
        likeliest = logits.log_softmax(-1).topk(params.logprobs or 1)
        logprobs = {
            int(token_id): Logprob(float(value), rank + 1)
            for rank, (value, token_id) in enumerate(zip(likeliest.values, likeliest.indices, strict=True))
        }
        finish = self._finish(one, token)
        one.tell((token, logprobs, finish))
        return finish is not None

    def _drawn(self, logits: torch.Tensor, params: SamplingParams) -> int:
        probabilities = (logits / (params.temperature or 1.0)).softmax(-1)
        if params.top_k:
            probabilities[probabilities < probabilities.topk(params.top_k).values[-1]] = 0
        ranked, order = probabilities.sort(descending=True)
        probabilities[order[ranked.cumsum(-1) - ranked >= (params.top_p or 1.0)]] = 0
        return int(torch.multinomial(probabilities, 1))

    def _finish(self, one: RequestOutput, token: int) -> str | None:
        params = one.params
        if token in (params.stop_token_ids or ()) or (token == params.end_id and not params.ignore_eos):
            return "stop"
        generated = len(one.ids) - len(one.prompt)
        return "length" if generated == params.max_tokens or len(one.ids) == self._longest else None
