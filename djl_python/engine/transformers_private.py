"""The names of transformers that its documentation does not promise: the engine uses them here and nowhere else.

Checked with transformers 5.4.0, the oldest that is supported, and 5.24.0. `tests/engine/test_transformers_private.py`
tells which name a release lacks. Runs in the engine process, at load.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Final

# Operations that lay the weights of experts out as (experts, out, in), or two of them joined by rows.
_STACKING: Final = ([("MergeModulelist", 0)], [("MergeModulelist", 0), ("Concatenate", 1)])


def attention_name(config: Any) -> str:
    """The name of the attention function that a model with this configuration looks up."""
    name: str = config._attn_implementation
    return name


def remove_mask_function(attention: str) -> None:
    """Take back what `AttentionMaskInterface.register` has registered for an attention function."""
    from transformers import AttentionMaskInterface

    AttentionMaskInterface._global_mapping.pop(attention, None)


def ignore_when_loading(model: Any, patterns: Iterable[str]) -> None:
    """Have tensors with such names ignored, which the checkpoint has and the model does not load."""
    ignored = model._keys_to_ignore_on_load_unexpected
    kind = list if ignored is None else type(ignored)  # transformers adds to it: older versions a list
    model._keys_to_ignore_on_load_unexpected = kind((*(ignored or ()), *patterns))


def keep_uninitialized(module: Any) -> None:
    """Have the weights of a module, which may have none any more, not be initialized where they are not loaded."""
    module._is_hf_initialized = True


def untie(model: Any) -> None:
    """Have no weight of a model be another one's, before its weights are loaded."""
    model.config.tie_word_embeddings = False
    model.all_tied_weights_keys = {}


def unsplit_classes(model: Any) -> frozenset[str]:
    """Names of the classes whose modules accelerate may not divide among devices: the model's layers."""
    return frozenset(model._no_split_modules or ())


class NotInitialized:
    """A weight that transformers must not initialize, because it is loaded already."""

    _is_hf_initialized: ClassVar[bool] = True


@dataclass(frozen=True)
class WeightConverter:
    """How transformers makes one weight of a model of several tensors of a checkpoint."""

    _converter: Any

    @property
    def patterns(self) -> list[str]:
        """Of the tensors' names, in the order in which they are combined."""
        return list(self._converter.source_patterns)

    @property
    def stacks_experts(self) -> bool:
        """Whether it lays weights of experts out as (experts, out, in), or two of them joined by rows, and no more."""
        operations = self._converter.operations
        known = [(type(each).__name__, each.dim) for each in operations if hasattr(each, "dim")]
        return len(known) == len(operations) and known in _STACKING


class WeightConversions:
    """Where the tensors of a checkpoint go in a model that is not loaded yet."""

    def __init__(self, model: Any) -> None:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter as Converter

        changes = get_model_conversion_mapping(model)
        self._converters = [each for each in changes if isinstance(each, Converter)]
        self._renamings = [each for each in changes if not isinstance(each, Converter)]
        self._by_pattern = {
            pattern: WeightConverter(each) for each in self._converters for pattern in each.source_patterns
        }
        self._prefix, self._weights = model.base_model_prefix, model.state_dict()

    def target_of(self, tensor: str) -> tuple[str, str | None, WeightConverter | None]:
        """(name of the model's weight, the pattern of the tensor's name and the converter if it is one of several)"""
        from transformers.core_model_loading import rename_source_key

        name, pattern = rename_source_key(tensor, self._renamings, self._converters, self._prefix, self._weights)
        return name, pattern, None if pattern is None else self._by_pattern[pattern]


def by_number(names: Iterable[str]) -> list[str]:
    """Names of tensors in the order in which transformers combines them: numbers within them by value."""
    from transformers.core_model_loading import dot_natural_key

    return sorted(names, key=dot_natural_key)
