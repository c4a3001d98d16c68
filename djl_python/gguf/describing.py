"""Describes a GGUF model as a checkpoint's directory: the small files that its metadata makes, without weights.

Runs where models are fetched. Everything that reads checkpoints finds config.json, tokenizer.json, the chat template
and generation_config.json as usual; `FILE` names the GGUF file, from which the engine takes the weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from .configuring import generation_config, model_config
from .errors import GgufError
from .files import FILE
from .shards import read_model
from .vocabulary import Vocabulary
from .weights import weights_of

#: Bytes of a number, by the names of formats in config.json.
_BYTES: Final = {"float32": 4, "float16": 2, "bfloat16": 2}
_TEMPLATE: Final = "tokenizer.chat_template"


def describe(path: Path, directory: Path) -> None:
    """Write the described directory of the model in `path`, which may be any of its parts.

    Raises:
        GgufError: the file is damaged, or has something that is not served here.
    """
    model = read_model(path)
    config = model_config(model)
    weights = weights_of(model)  # refuses what the engine could not load
    size = _BYTES[config["dtype"]]
    loaded = {name: weight.rows * weight.row * size for name, weight in weights.items()}
    coded = {name: weight.bytes for name, weight in weights.items() if weight.is_multiplied_as_stored(name)}
    vocabulary = Vocabulary(model)
    files: dict[str, Mapping[str, Any]] = {
        "config.json": config,
        "generation_config.json": generation_config(model, vocabulary.eos_ids),
        "tokenizer.json": vocabulary.tokenizer(),
        "tokenizer_config.json": vocabulary.config(),
        FILE: {
            "path": str(model.path.absolute()),
            "loaded_bytes": sum(loaded.values()),
            "coded_bytes": sum({**loaded, **coded}.values()),
        },
    }
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    for key, template in model.metadata.items():
        if not (key == _TEMPLATE or key.startswith(f"{_TEMPLATE}.")):
            continue
        if not isinstance(template, str):
            raise GgufError(f"{model.path}: {key} is no text; expected a chat template")
        _write_template(directory, key.removeprefix(_TEMPLATE).removeprefix("."), template)


def _write_template(directory: Path, name: str, template: str) -> None:
    """A template as a file; the usual one has no name."""
    file = directory / "chat_template.jinja"
    if name:
        if not name.replace("_", "").isalnum():
            raise GgufError(f"{_TEMPLATE}.{name}: expected a name of letters, digits and _")
        file = directory / "additional_chat_templates" / f"{name}.jinja"
        file.parent.mkdir(exist_ok=True)
    file.write_text(template, encoding="utf-8")
