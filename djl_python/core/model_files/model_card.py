"""What a model's files say of it, for pages that describe models. Read in a thread of the front end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ModelCard:
    """Facts about a model; "", 0 and empty stand for unknown ones.

    Attributes:
        format: of the weights: "gguf", "safetensors" or "pytorch".
        architecture: "llama", "qwen2", ...
        parameters: how many numbers the weights have.
        quantization: as they are stored, by GGUF's names of types ("Q4_K_M", "BF16") or of the method ("gptq").
        size_bytes: of the files with weights.
        info: by GGUF's keys; arrays are empty unless they were asked for.
        generation: the values that the checkpoint recommends, by transformers' names.
        template: the usual chat template.
        shows_tools: whether a chat template has a place for tools.
        license: its name, or its text.
        takes_images: whether it is made for images too.
        infills: whether it has tokens for a text with a gap.
    """

    format: str = ""
    architecture: str = ""
    parameters: int = 0
    quantization: str = ""
    size_bytes: int = 0
    info: Mapping[str, Any] = field(default_factory=dict)
    generation: Mapping[str, Any] = field(default_factory=dict)
    template: str = ""
    shows_tools: bool = False
    license: str = ""
    takes_images: bool = False
    infills: bool = False
