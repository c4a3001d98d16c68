"""The private names of transformers that loading and placing use. Runs in the engine process, at load.

setup.cfg names the oldest release that is supported, and `NEWEST_TRIED` is the newest that was tried.
`tests/packaging/test_transformers_names.py` lists every private name that the project uses, and says what breaks where
a release lacks one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from packaging.version import Version

#: The newest release that the tests were run with; constraints.txt installs it.
NEWEST_TRIED: Final = "5.24"

# Operations that lay the weights of experts out as (experts, out, in), or two of them joined by rows.
_STACKING: Final = ([("MergeModulelist", 0)], [("MergeModulelist", 0), ("Concatenate", 1)])


def newer_than_tried(release: str) -> str:
    """A warning, if a release is newer than those that were tried; "" if not."""
    tried = Version(NEWEST_TRIED)
    if Version(release).release[:2] <= tried.release[:2]:
        return ""
    return (
        f"transformers {release} is newer than {NEWEST_TRIED}, the newest that was tried with this server: if a model "
        f"fails to load, or runs on torch where it ran on the native kernels, install 'transformers<={NEWEST_TRIED}.99'"
    )


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
    """Keep transformers from initializing a module's unloaded weights; the module may have none any more."""
    module._is_hf_initialized = True


def kept_in_fp32(model: Any, *, is_fp16: bool) -> frozenset[str]:
    """Parts of the names of parameters that transformers loads in fp32 where a model is loaded in 16 bits."""
    names = (model._keep_in_fp32_modules_strict, model._keep_in_fp32_modules if is_fp16 else None)
    return frozenset(one for some in names for one in some or ())


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
        """The tensors' names, in the order in which they are combined."""
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
