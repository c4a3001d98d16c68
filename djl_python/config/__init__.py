"""Configuration: serving.properties, config.properties and the environment become ModelConfig and ServerConfig.

Runs in the front end; the worker only decodes a ModelConfig. The only package that reads the environment. `settings`
and `server` declare every setting once; `binding` parses and validates them; `loading` merges their sources, of which
`properties_file` and `environment` are two; `describe` and `table` print them, `masking` hides secrets. `specs` says
which models there are, `sources` fetches them, `model` is the result; `devices` names devices, and `tasks` tells from
config.json whether a checkpoint generates text.
"""

from __future__ import annotations

from .describe import describe
from .devices import device_id, devices_each, devices_of, has_gpu, workers_of, workers_sharing
from .engines import ENGINES, own_options
from .environment import engine_environment, set_rank_environment, worker_environment
from .loading import load_model_config
from .model import Checkpoint, ModelConfig, read_json_object
from .server import Address, ServerConfig, load_server_config
from .settings import Options, ServingSettings
from .specs import ModelSpec, find_models, parse_model_spec, split_model_specs
from .table import environment_table, settings_table, without_effect_table
from .tasks import TASKS, TEXT_GENERATION, Task, check_is_for, task_of
from .without_effect import OPTIONS_WITHOUT_EFFECT, SERVING_WITHOUT_EFFECT

__all__ = [
    "ENGINES",
    "OPTIONS_WITHOUT_EFFECT",
    "SERVING_WITHOUT_EFFECT",
    "TASKS",
    "TEXT_GENERATION",
    "Address",
    "Checkpoint",
    "ModelConfig",
    "ModelSpec",
    "Options",
    "ServerConfig",
    "ServingSettings",
    "Task",
    "check_is_for",
    "describe",
    "device_id",
    "devices_each",
    "devices_of",
    "engine_environment",
    "environment_table",
    "find_models",
    "has_gpu",
    "load_model_config",
    "load_server_config",
    "own_options",
    "parse_model_spec",
    "read_json_object",
    "set_rank_environment",
    "settings_table",
    "split_model_specs",
    "task_of",
    "without_effect_table",
    "worker_environment",
    "workers_of",
    "workers_sharing",
]
