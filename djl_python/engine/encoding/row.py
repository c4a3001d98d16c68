"""The row of the engine of encoders. Read in every process; imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec

from ...config import ModelConfig
from ...config.settings.values import Positive
from ..builtin.row import batch_environment, named_gpus_faults
from ..checkpoints.directory import ROUNDED
from ..interface import EngineSettings
from ..row import Engine
from .sentence_transformers import SentenceTransformer
from .settings import EncoderSettings, Head


class EncoderOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options that encoders take of those that the built-in engine declares."""

    threads: Positive | None = None
    kernels: Literal["auto", "native", "torch"] = "auto"
    quantize: Literal["none", "int8", "int4", "gptq", "awq"] = "none"


def encoder_settings(config: ModelConfig, common: EngineSettings, head: Head) -> EncoderSettings:
    """What the engine is opened with for a model.

    Raises:
        ModelLoadError: the files of sentence-transformers beside the checkpoint are broken.
    """
    option, serving, own = config.option, config.serving, ENGINE.options_of(config)
    modules = SentenceTransformer.read(Path(common.model_path)).modules
    if option.pooling:
        modules = msgspec.structs.replace(modules, poolings=(option.pooling,))
    return EncoderSettings(
        **msgspec.structs.asdict(common),
        head=head,
        modules=modules,
        threads=own.threads,
        kernels=own.kernels,
        quantize=own.quantize if own.quantize in ROUNDED else None,
        max_batch_tokens=option.max_batch_tokens,
        batch_size=serving.batch_size,
        max_batch_delay_s=serving.max_batch_delay_ms / 1000 if serving.batch_size > 1 else 0.0,
    )


def _environment(config: ModelConfig, options: EncoderOptions, environ: Mapping[str, str]) -> Mapping[str, str]:
    """What torch reads when it is imported. Its idle threads spin for microseconds only: an encoder's operations are
    short, and where processors are shared, spinning for longer takes the time of the thread that is waited for."""
    return {**batch_environment(environ), "GOMP_SPINCOUNT": "2000"}


def _check(config: ModelConfig, options: EncoderOptions) -> None:
    named_gpus_faults(config).refuse()


ENGINE: Final = Engine(
    name="encoder",
    summary="Models that read whole texts: embeddings, scores, labels; batched by tokens.",
    opens="djl_python.engine.encoding.opening:open_encoder",
    options=EncoderOptions,
    settings_type=EncoderSettings,
    check=_check,
    environment=_environment,
)
