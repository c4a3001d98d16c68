"""The settings that SageMaker's variables stand for.

Runs in the front end. Sources: DJL Serving's compatibility with the containers of scikit-learn and XGBoost, and
SageMaker's documents about containers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ...core.logs import LEVELS

Convert = Callable[[str], str]

#: Whether models are loaded by requests.
MULTI_MODEL: Final = "SAGEMAKER_MULTI_MODEL"
#: The port to listen on.
PORT: Final = "SAGEMAKER_BIND_TO_PORT"
_LOG_LEVEL: Final = "SAGEMAKER_CONTAINER_LOG_LEVEL"


def same(value: str) -> str:
    """The value as it is."""
    return value


def is_true(value: str) -> bool:
    """Whether a variable says yes."""
    return value.strip().lower() in ("true", "1")


def _from_mebibytes(value: str) -> str:
    return str(int(value) << 20) if value.strip().isdecimal() else value


def _no_models(value: str) -> str:
    """The models of a multi-model endpoint are loaded by requests."""
    return "NONE" if is_true(value) else ""


def _opened(value: str) -> str:
    """The client that loads the models of a multi-model endpoint runs outside of the container."""
    return "open" if is_true(value) else ""


#: Variable -> a model's key and the conversion of its value, where nothing else sets the key.
OF_MODELS: Final[Mapping[str, tuple[str, Convert]]] = {
    "SAGEMAKER_NUM_MODEL_WORKERS": ("minWorkers", same),
    "SAGEMAKER_STARTUP_TIMEOUT": ("option.model_loading_timeout", same),
    "SAGEMAKER_MODEL_SERVER_TIMEOUT_SECONDS": ("option.predict_timeout", same),
    "SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT": ("option.default_accept", same),
}
#: (variable, key of the server's, conversion). If two variables set one key, the later row wins.
OF_THE_SERVER: Final[Sequence[tuple[str, str, Convert]]] = (
    (MULTI_MODEL, "load_models", _no_models),
    (MULTI_MODEL, "management_access", _opened),
    ("SAGEMAKER_MAX_PAYLOAD_IN_MB", "max_request_size", _from_mebibytes),
    ("SAGEMAKER_MAX_REQUEST_SIZE", "max_request_size", same),
    ("SAGEMAKER_HEALTH_CHECK_OVERRIDE", "health_check_override", same),
)
#: Variables without effect -> why.
WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    "SAGEMAKER_MODEL_SERVER_VMARGS": "there is no Java here",
    "SAGEMAKER_SAFE_PORT_RANGE": "the server listens on one port, and its processes speak through sockets without one",
}


def log_level(environ: Mapping[str, str] = os.environ) -> str | None:
    """One of `core.logs.LEVELS` that SAGEMAKER_CONTAINER_LOG_LEVEL stands for: a name, or a number of Python's logging.

    Raises:
        ValueError: it is neither; says what was expected.
    """
    level = environ.get(_LOG_LEVEL, "").strip().lower()
    if not level:
        return None
    if level in LEVELS:
        return level
    if level.isdecimal():
        return LEVELS[min(max(int(level) // 10 - 1, 0), len(LEVELS) - 1)]
    raise ValueError(f"environment {_LOG_LEVEL}={level}: expected one of {', '.join(LEVELS)}, or 10, 20, 30, 40")
