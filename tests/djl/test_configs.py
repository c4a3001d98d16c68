"""Settings that public users of DJL Serving and LMI run with: each is served, or refused in words that say why.

`configs.jsonl` has the settings alone, of a serving.properties and of the environment. MODEL stands for a checkpoint,
here a small one; VALUE for what belongs to their authors.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from djl_python import checking
from djl_python.config import find_models, load_model_config, load_server_config
from djl_python.core.errors import ConfigError, ModelLoadError
from djl_python.engine.builtin import row

CONFIGS: list[dict[str, Any]] = [
    json.loads(line) for line in Path(__file__).with_name("configs.jsonl").read_text().splitlines()
]
#: What is refused, and what of the message says why. All others are served.
_NO_TASK = "no built-in handler does that; expected text-generation"
_NO_FILE = "does not exist in"
_NOTHING = "nothing to serve: there is no model.py and no config.json"
REFUSED: Mapping[int, str] = {
    **dict.fromkeys((106, 116, *range(182, 188)), _NO_TASK),
    **dict.fromkeys((11, 27, 28), _NO_FILE),  # their model.py is not here
    **dict.fromkeys((102, 107, 108, 109, 112, 124), _NOTHING),  # nor are their models of Java's engines
    103: "option.entryPoint=djl_python.stable-diffusion: expected",
    111: "has no model.json",  # nor the table's model
    17: "there is no directory /opt/ml/model",
    105: "option.model_id is not set",
    166: "option.pipeline_parallel_degree=2: devices can share each layer",
}


@pytest.fixture(autouse=True)
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machines that these settings are for have some."""
    monkeypatch.setattr(row, "has_gpu", lambda: True)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint")
    (path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}')
    return path


def outcome(settings: Mapping[str, Any], directory: Path, checkpoint: Path) -> str:
    """What `check` says of a model directory with these settings, and of a model that the environment alone names."""

    def here(values: Mapping[str, str]) -> dict[str, str]:
        return {
            key: str(checkpoint) if value == "MODEL" else value.replace("=/opt/ml/model", f"={directory}")
            for key, value in values.items()
        }

    properties, environ = here(settings["properties"]), here(settings["environment"])
    if properties:
        lines = [f"{key}={value}\n" for key, value in properties.items()]
        (directory / "serving.properties").write_text("".join(lines))
    named = [str(directory)] if properties and "SERVING_LOAD_MODELS" not in environ else []
    try:
        server = load_server_config(None, {}, environ)
        configs = [load_model_config(spec, server, environ) for spec in find_models(server, named, environ)]
        assert configs, "no model was found"
        for config in configs:
            checking.handler_of(config)
    except (ConfigError, ModelLoadError) as refusal:
        return refusal.message
    return "served"


@pytest.mark.parametrize("settings", CONFIGS, ids=lambda settings: str(settings["id"]))
def test_it_is_served_or_told_what_to_change(settings: Mapping[str, Any], tmp_path: Path, checkpoint: Path) -> None:
    found = outcome(settings, tmp_path, checkpoint)
    expected = REFUSED.get(settings["id"], "served")
    assert expected in found
    assert "\n" not in found


def test_most_are_served(capsys: pytest.CaptureFixture[str]) -> None:
    counts = Counter("refused" if settings["id"] in REFUSED else "served" for settings in CONFIGS)
    with capsys.disabled():
        print(f"\npublic configurations: {counts['served']} of {len(CONFIGS)} served, {counts['refused']} refused")
    assert counts["served"] >= 169
