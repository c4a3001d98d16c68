"""What a GGUF file has: in a few lines for `djl-serving check`, and as facts for pages that describe models.

Runs in the command's process, and in threads of the front end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from .reading import Metadata
from .shards import GgufModel, read_model
from .vocabulary import Vocabulary
from .weights import weights_of

#: Names of `general.file_type`, as llama.cpp defines them (`llama_ftype`).
_FILE_TYPES: Final = {
    **{0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S"},
    **{12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K"},
    **{19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL"},
    **{26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16"},
    **{36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4"},
}
#: Not part of `info`, as they are shown elsewhere.
_ELSEWHERE: Final = ("general.name", "tokenizer.chat_template")


def summary(path: Path) -> list[tuple[str, str]]:
    """(what, its value) of a model's file.

    Raises:
        GgufError: the file is damaged, or has something that is not served here.
    """
    model = read_model(path)
    metadata, vocabulary = Metadata(model), Vocabulary(model)
    sizes, numbers = Counter[str](), 0
    for _, tensor in model.tensors.values():
        sizes[tensor.type.name] += tensor.size
        numbers += tensor.numbers
    total = sum(sizes.values()) or 1
    shares = [f"{name} {100 * size / total:.0f} %" for name, size in sizes.most_common()]
    weights = weights_of(model)
    kept, changed = Counter[str](), Counter[str]()
    for name, weight in weights.items():
        if len(weight.shape) > 1:
            (kept if weight.is_multiplied_as_stored(name) else changed)[weight.tensor.type.name] += weight.bytes
    pre = f", pre-tokenizer {vocabulary.pre_name}" if vocabulary.pre_name else ""
    files = f", in {len(model.files)} files" if len(model.files) > 1 else ""
    return [
        ("file", f"{model.path}, {model.size / 2**20:,.0f} MiB{files}, GGUF version {model.files[0].version}"),
        ("architecture", metadata.architecture),
        ("parameters", f"{numbers / 1e6:,.1f} million, in {len(weights):,} weights"),
        ("types", f"{', '.join(shares)} of the bytes"),
        ("runs on its codes", f"{_listed(kept)}, on CPUs"),
        ("becomes option.dtype", _listed(changed)),
        ("context", f"{metadata.count('.context_length'):,} tokens"),
        ("vocabulary", f"{len(vocabulary.tokens):,} tokens, {vocabulary.kind}{pre}"),
        ("chat template", "yes" if "tokenizer.chat_template" in metadata else "no"),
    ]


def _listed(sizes: Counter[str]) -> str:
    return ", ".join(f"{size / 2**20:,.1f} MiB of {name}" for name, size in sizes.most_common()) or "nothing"


@dataclass(frozen=True)
class GgufFacts:
    """What a file says; attributes as those of `core.model_files.model_card.ModelCard`."""

    architecture: str
    parameters: int
    quantization: str
    size_bytes: int
    info: Mapping[str, Any]
    license: str


def facts_of(path: Path, *, whole: bool = False) -> GgufFacts:
    """What the model's file, or any of its parts, says.

    Args:
        whole: whether `info` has the arrays; otherwise they are empty.

    Raises:
        GgufError: the file is damaged.
    """
    model = read_model(path)
    parameters = sum(tensor.numbers for _, tensor in model.tensors.values())
    info = {
        key: _shown(value, whole=whole)
        for key, value in sorted(model.metadata.items())
        if not key.startswith(("split.", *_ELSEWHERE))
    }
    return GgufFacts(
        architecture=Metadata(model).architecture,
        parameters=parameters,
        quantization=_quantization(model),
        size_bytes=model.size,
        info={**info, "general.parameter_count": parameters},
        license=Metadata(model).text("general.license", ""),
    )


def _quantization(model: GgufModel) -> str:
    """The file's type by name; of a file that does not say, the type that has most of its bytes."""
    if named := _FILE_TYPES.get(Metadata(model).count("general.file_type", -1, least=0)):
        return named
    sizes = Counter[str]()
    for _, tensor in model.tensors.values():
        sizes[tensor.type.name] += tensor.size
    return next((name for name, _ in sizes.most_common(1)), "")


def _shown(value: Any, *, whole: bool) -> Any:
    if not isinstance(value, list | np.ndarray):
        return value
    if not whole:
        return []
    return value.tolist() if isinstance(value, np.ndarray) else value
