"""A model's configuration, once the model is here.

Runs in threads of the front end.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..config import ModelConfig, ModelSpec, ServerConfig, model_directory, read_model_config, reading_models
from ..config.environment import cache_directory, own_environment
from ..config.loading import HUB_SCHEME
from ..core.errors import ConfigError
from ..core.faults import Faults
from .finding import fetch_model


def load_model_config(spec: ModelSpec, server: ServerConfig, environ: Mapping[str, str] | None = None) -> ModelConfig:
    """Download and unpack a model where `spec.url` says so, and read its configuration.

    Args:
        environ: None for this process's.

    Raises:
        ConfigError: the model is not available, or its configuration is wrong: a line for each problem.
    """
    config, faults = fetch_and_read(spec, server, environ)
    faults.refuse(ConfigError)
    return config


def is_of_hub(spec: ModelSpec) -> bool:
    """Whether it is a checkpoint of the hub, which its handler downloads."""
    return spec.url.startswith(HUB_SCHEME)


@reading_models()
def fetch_and_read(
    spec: ModelSpec, server: ServerConfig, environ: Mapping[str, str] | None = None
) -> tuple[ModelConfig, Faults]:
    """`load_model_config`'s configuration and what is wrong with it, see `read_model_config`.

    Raises:
        ConfigError: the model is not available, or its serving.properties can't be read.
    """
    environ = own_environment() if environ is None else environ
    directory = None
    if not is_of_hub(spec):
        cache_dir = cache_directory(environ)
        directory = model_directory(fetch_model(spec.url, Path(cache_dir) if cache_dir else None))
    return read_model_config(spec, server, directory, environ)
