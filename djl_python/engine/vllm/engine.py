"""Runs vLLM. The only module that imports it.

Runs in the engine process, in its asyncio loop; vLLM computes in processes of its own, which end with this one.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final, NoReturn

from vllm import SamplingParams as VllmSampling
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.exceptions import VLLMClientError
from vllm.inputs import EngineInput, tokens_input
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.prometheus import get_prometheus_registry

from ...core.engine_info import EngineInfo, EngineStats
from ...core.errors import ModelLoadError, ParameterError, ServingError
from ...core.metrics import MetricFamily, MetricSample
from ...core.sequence_request import Pictures, SequenceRequest
from ...core.turns.precedence import MAX_PRIORITY
from ...core.types import SamplingParams, TokenEvent
from ..interface import AsyncEngine, Progress
from .adapters import EngineAdapters, room
from .arguments import VllmSettings, command_line, engine_arguments
from .images import Renderer
from .sampling import grammar_arguments, sampling_arguments, token_events

log = logging.getLogger(__name__)

#: vLLM's message about a model whose code can't be imported.
_UNREADABLE: Final = "failed to be inspected"


class VllmEngine(AsyncEngine):
    """A vLLM engine, by the interface of an `AsyncEngine`."""

    def __init__(self, engine: AsyncLLM, gauges: list[_Gauges], adapters: EngineAdapters) -> None:
        self._engine = engine
        self._adapters = adapters
        self._gauges = gauges
        self._sequences = 0
        self._renderer = Renderer(engine)
        self.takes_images = self._renderer.takes_images
        config: VllmConfig = engine.vllm_config
        self.max_model_len = config.model_config.max_model_len
        self.max_batch_size = config.scheduler_config.max_num_seqs
        self.kv_blocks = config.cache_config.num_gpu_blocks or 0
        self.block_size = config.cache_config.block_size or 0
        self.vocabulary = config.model_config.get_vocab_size()
        dtype, quantize = str(config.model_config.dtype).removeprefix("torch."), config.model_config.quantization
        self.info = EngineInfo(
            runner="vllm",
            dtype=dtype,
            quantize=str(quantize or "none"),
            device=current_platform.device_type,
            shares_prefixes=bool(config.cache_config.enable_prefix_caching),
        )
        self.description = f"vLLM {_version()}: {self.info.summary}, {self.kv_blocks} KV blocks of {self.block_size}"

    @classmethod
    async def open(cls, settings: VllmSettings, progress: Progress) -> VllmEngine:  # type: ignore[override]
        """Start vLLM with the settings.

        Raises:
            ModelLoadError: vLLM does not take an option's value; in its words.
        """
        progress("starting vLLM", 0, 0)
        parser = AsyncEngineArgs.add_cli_args(_Parser())
        actions = {action.dest: action for action in parser._actions}
        known, flags = frozenset(actions), frozenset(name for name, action in actions.items() if action.nargs == 0)
        arguments, unknown = engine_arguments(settings, known, max(1, current_platform.device_count() or 0))
        if unknown:
            log.warning("options that neither this server nor vLLM has: %s", ", ".join(unknown))
        parsed = parser.parse_args(command_line(arguments, flags))
        given = AsyncEngineArgs.from_cli_args(parsed)
        given.disable_log_stats = True  # ours are enough: its own would be printed
        gauges: list[_Gauges] = []

        def logger(config: VllmConfig, index: int = 0) -> _Gauges:
            gauges.append(_Gauges(config, index))
            return gauges[-1]

        try:
            # vLLM's defaults differ by what it is used for: these are those of its own server.
            engine = AsyncLLM.from_engine_args(
                given, usage_context=UsageContext.OPENAI_API_SERVER, stat_loggers=[logger]
            )
        except ValueError as exc:
            if _UNREADABLE in str(exc) and importlib.util.find_spec("torchvision") is None:
                raise ModelLoadError(
                    "vLLM's code for this model needs torchvision, which vLLM's environment for CPUs has not: "
                    "option.rolling_batch=auto serves it on CPUs"
                ) from exc
            raise
        adapters = EngineAdapters(engine, room(engine.vllm_config.lora_config, current_platform.is_cpu()))
        try:
            for number, (name, path) in enumerate(settings.adapters.items(), 1):
                progress(f"loading the adapter {name}", number, len(settings.adapters))
                # Whatever is wrong with one: a request that names it would end vLLM.
                await adapters.add(name, 0, path)
        except ServingError as exc:
            engine.shutdown()
            raise ModelLoadError(exc.message) from exc
        return cls(engine, gauges, adapters)

    async def generate(self, request: SequenceRequest) -> AsyncGenerator[TokenEvent, None]:
        self.check_prompt(request.prompt_ids)
        prompt: EngineInput = tokens_input(request.prompt_ids)
        if isinstance(request.images, Pictures):
            prompt = await self._renderer.render(request.images)
            generated = request.prompt_ids[request.images.length :]
            prompt["prompt_token_ids"] = [*prompt["prompt_token_ids"], *generated]
        if request.cache_salt:
            prompt["cache_salt"] = request.cache_salt
        sampling = _sampling(request.sampling)
        with self._adapters.used(request.adapter, request.adapter_version) as lora_request:
            outputs = self._engine.generate(
                prompt,
                sampling,
                str(request.id),
                lora_request=lora_request,
                # Read with option.scheduling_policy=priority alone; vLLM knows neither tenants nor batches.
                priority=request.precedence.priority + MAX_PRIORITY * request.precedence.background,
            )
            begun = False
            self._sequences += 1
            try:
                async for output in outputs:
                    running_s = None if begun else _running_s(output)
                    for event in token_events(request.id, output, request.sampling, running_s):
                        begun = True
                        yield event
            except EngineDeadError:
                raise
            except (ValueError, VLLMClientError) as exc:  # vLLM's errors for a faulty request
                raise ParameterError(str(exc), "") from exc
            finally:
                self._sequences -= 1
                await outputs.aclose()  # it aborts unfinished requests

    async def expand(self, pictures: Pictures) -> list[int]:
        return list((await self._renderer.render(pictures))["prompt_token_ids"])

    async def add_adapter(self, name: str, version: int, directory: str, options: Mapping[str, str]) -> None:
        await self._adapters.add(name, version, directory, pin=options.get("pin") == "true")

    async def remove_adapter(self, name: str, version: int) -> None:
        await self._adapters.remove(name, version)

    @property
    def stats(self) -> EngineStats:
        """The gauges. vLLM reports its own after each step, but not after the last: running sequences are counted
        here.
        """
        waiting = min(self._sequences, sum(gauge.waiting for gauge in self._gauges))
        running = min(self._sequences - waiting, self.max_batch_size)
        used = sum(gauge.usage for gauge in self._gauges) / max(1, len(self._gauges))
        return EngineStats(
            running=running,
            waiting=self._sequences - running,
            kv_blocks_used=round(used * self.kv_blocks) if self._sequences else 0,
            kv_blocks_total=self.kv_blocks,
            preemptions=sum(gauge.preemptions for gauge in self._gauges),
        )

    def metrics(self) -> list[MetricFamily]:
        """The metrics that vLLM itself would show at /metrics; it counts them anyway."""
        return [
            MetricFamily(
                family.name,
                family.type,
                family.documentation,
                [
                    MetricSample(sample.name, dict(sample.labels), sample.value)
                    for sample in family.samples
                    if not sample.name.endswith("_created")
                ],
            )
            for family in get_prometheus_registry().collect()
            if family.name.startswith("vllm:")
        ]

    def isolate(self, cause: Exception) -> None:
        """A sequence failed alone, unless vLLM's own process has ended."""
        if isinstance(cause, EngineDeadError) or self._engine.errored:
            raise cause

    async def close(self) -> None:
        """End vLLM's processes."""
        self._engine.shutdown()
        del self._engine  # its end is harmless now, and an error once the interpreter ends


class _Gauges(StatLoggerBase):
    """vLLM's latest gauges."""

    def __init__(self, vllm_config: VllmConfig, engine_index: int = 0) -> None:
        self.waiting = self.preemptions = 0
        self.usage = 0.0

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        if scheduler_stats is not None:
            self.waiting = scheduler_stats.num_waiting_reqs
            self.usage = scheduler_stats.kv_cache_usage
        if iteration_stats is not None:
            self.preemptions += iteration_stats.num_preempted_reqs

    def log_engine_initialized(self) -> None:
        return


class _Parser(FlexibleArgumentParser):
    """A parser whose errors become a model's load errors."""

    def error(self, message: str) -> NoReturn:
        raise ModelLoadError(f"vLLM does not take an option: {message}")


def _sampling(sampling: SamplingParams) -> VllmSampling:
    made = VllmSampling(**sampling_arguments(sampling), output_kind=RequestOutputKind.DELTA)
    if sampling.grammar is not None:
        made.structured_outputs = StructuredOutputsParams(**grammar_arguments(sampling.grammar))
    if sampling.bad_words_ids:  # vLLM takes texts, and has them as ids here
        made._bad_words_token_ids = [list(ids) for ids in sampling.bad_words_ids]
    return made


def _running_s(output: Any) -> float | None:
    times = output.metrics
    return None if times is None or not times.scheduled_ts else max(0.0, times.first_token_ts - times.scheduled_ts)


def _version() -> str:
    import vllm

    version: str = vllm.__version__
    return version
