"""The memory of a draft model. Runs in the engine process, once.

The draft model is loaded after the model's cache has been sized, and gets as many blocks. So its memory is computed
from its files: its configuration gives the size of a token in its cache (an upper bound: latent attention takes less).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ...gguf import loaded_bytes
from ..settings import BuiltInSettings

_WEIGHTS: Final = ("*.safetensors", "*.bin")
_BYTES: Final = {"fp32": 4, "float32": 4}  # of a number; others have 2


@dataclass(frozen=True)
class DraftMemory:
    """The memory to reserve for a draft model.

    Attributes:
        weight_bytes: once.
        token_bytes: for each token that the cache has room for.
    """

    weight_bytes: int = 0
    token_bytes: int = 0


NO_DRAFT: Final = DraftMemory()


def draft_size(settings: BuiltInSettings) -> DraftMemory:
    """The memory of `option.draft_model_id`'s model; nothing without one."""
    if settings.speculative != "draft":
        return NO_DRAFT
    from transformers import AutoConfig

    path = Path(settings.draft_model_path)
    config = AutoConfig.from_pretrained(path, trust_remote_code=settings.trust_remote_code)
    text = config.get_text_config(decoder=True)
    stored = _BYTES.get(str(getattr(text, "dtype", None)).removeprefix("torch."), 2)
    loaded = stored if settings.dtype == "auto" else _BYTES.get(settings.dtype, 2)
    weights = next((files for pattern in _WEIGHTS if (files := list(path.glob(pattern)))), [])
    size = loaded_bytes(path) or sum(each.stat().st_size for each in weights)
    return DraftMemory(size * loaded // stored, _token_numbers(text) * loaded)


def _token_numbers(text: Any) -> int:
    """How many numbers a token leaves in the cache."""
    heads = _most(text, "num_attention_heads")
    if not heads:
        return 0  # it keeps states, and will be refused
    kv_heads = _most(text, "num_key_value_heads") or heads
    dim = _most(text, "head_dim") or -(-_most(text, "hidden_size") // heads)
    return 2 * _most(text, "num_hidden_layers") * kv_heads * dim


def _most(config: Any, name: str) -> int:
    """A number of the configuration, the greatest if layers have their own; 0 without it."""
    value = getattr(config, name, None) or 0
    return int(max(value) if isinstance(value, list | tuple) else value)
