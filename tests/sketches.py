"""Checkpoints that are complete as far as their files show: what reads files takes them, and nothing could run them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from djl_python.testing import write_byte_tokenizer

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}


def write_sketch(path: Path, config: dict[str, Any] | None = None) -> Path:
    """Write a checkpoint's config.json, tokenizer and weights, of which there are none, into a directory."""
    write_byte_tokenizer(path)
    (path / "config.json").write_text(json.dumps(LLAMA if config is None else config))
    save_file({"nothing": np.zeros(1, np.float32)}, path / "model.safetensors")
    return path
