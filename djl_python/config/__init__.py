"""Configuration: serving.properties, config.properties and the environment become ModelConfig and ServerConfig.

Runs in the front end; the worker only decodes a ModelConfig. No other package reads the environment. `settings`
declares every setting once; `binding` parses and validates them; `loading` (of models) and `server_loading` merge their
sources, of which `properties_file` and `environment` are two; `describe` and `table` print them, `masking` hides
secrets. `specs` says which models there are, `sources` reads their URLs, `model` is the result; `devices` names
devices, and `tasks` tells from config.json whether a checkpoint generates text. `sagemaker` is about SageMaker's
variables. Nothing here downloads a model; `djl_python.sources` does.
"""

from __future__ import annotations

from .describe import describe, described_environment, shown_server_settings, shown_settings
from .devices import (
    LOCAL,
    bounds_of,
    bounds_on,
    device_id,
    devices_each,
    devices_of,
    devices_sharing,
    has_gpu,
    is_remote,
    stages_each,
    visible_devices,
    workers_of,
    workers_sharing,
)
from .engines import ENGINES, own_options
from .environment import (
    ENVIRONMENT_STAMP,
    PROCESS_NEEDS,
    activated,
    api_key,
    compiling_environment,
    engine_environment,
    engines_directory,
    extensions_directory,
    is_offline,
    own_server_environment,
    set_rank_environment,
    state_directory,
    venv_directory,
    worker_environment,
)
from .keys.without_effect import OPTIONS_WITHOUT_EFFECT, SERVING_WITHOUT_EFFECT
from .listening.address import Address
from .listening.networks import UNIX, Networks
from .loading import read_model_config
from .model import Checkpoint, ModelConfig, Runtime, read_json_object
from .sagemaker.variables import log_level
from .server_loading import load_server_config, read_server_config
from .settings.options import Options
from .settings.server import ServerConfig
from .settings.serving import ServingSettings
from .sources.model_urls import ModelUrls
from .specs import (
    ModelSpec,
    check_default_model,
    find_models,
    model_directory,
    parse_model_spec,
    reading_models,
    registered_spec,
    split_model_specs,
)
from .table import environment_table, settings_table, without_effect_table
from .tasks import (
    TASKS,
    TEXT2TEXT_GENERATION,
    TEXT_GENERATION,
    Task,
    check_is_for,
    task_named,
    task_of,
    task_of_checkpoint,
)

__all__ = [
    "ENGINES",
    "ENVIRONMENT_STAMP",
    "LOCAL",
    "OPTIONS_WITHOUT_EFFECT",
    "PROCESS_NEEDS",
    "SERVING_WITHOUT_EFFECT",
    "TASKS",
    "TEXT2TEXT_GENERATION",
    "TEXT_GENERATION",
    "UNIX",
    "Address",
    "Checkpoint",
    "ModelConfig",
    "ModelSpec",
    "ModelUrls",
    "Networks",
    "Options",
    "Runtime",
    "ServerConfig",
    "ServingSettings",
    "Task",
    "activated",
    "api_key",
    "bounds_of",
    "bounds_on",
    "check_default_model",
    "check_is_for",
    "compiling_environment",
    "describe",
    "described_environment",
    "device_id",
    "devices_each",
    "devices_of",
    "devices_sharing",
    "engine_environment",
    "engines_directory",
    "environment_table",
    "extensions_directory",
    "find_models",
    "has_gpu",
    "is_offline",
    "is_remote",
    "load_server_config",
    "log_level",
    "model_directory",
    "own_options",
    "own_server_environment",
    "parse_model_spec",
    "read_json_object",
    "read_model_config",
    "read_server_config",
    "reading_models",
    "registered_spec",
    "set_rank_environment",
    "settings_table",
    "shown_server_settings",
    "shown_settings",
    "split_model_specs",
    "stages_each",
    "state_directory",
    "task_named",
    "task_of",
    "task_of_checkpoint",
    "venv_directory",
    "visible_devices",
    "without_effect_table",
    "worker_environment",
    "workers_of",
    "workers_sharing",
]
