"""Names of transformers 4 that have a successor in transformers 5, put back for the user's code that uses them.

Runs in the worker, before the user's file is imported; transformers is imported only where the file does it too. The
rest of what is gone is refused (`transformers4`).
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

#: Names of the package -> "module:name" of what they stand for.
ALIASES: Final[Mapping[str, str]] = {
    "AdamW": "torch.optim:AdamW",
    "AutoModelForVision2Seq": "transformers:AutoModelForImageTextToText",
    "CLIPFeatureExtractor": "transformers:CLIPImageProcessor",
    "LogitsWarper": "transformers:LogitsProcessor",
    "TRANSFORMERS_CACHE": "huggingface_hub.constants:HF_HUB_CACHE",
    "ViTFeatureExtractor": "transformers:ViTImageProcessor",
}
#: Arguments of `from_pretrained` that `_arguments` translates.
ARGUMENTS: Final = frozenset({"load_in_4bit", "load_in_8bit", "use_auth_token"})
#: Classes whose `from_pretrained` takes them.
_LOADERS: Final = (
    *("transformers:AutoConfig", "transformers:AutoProcessor", "transformers:AutoTokenizer"),
    *("transformers:PreTrainedModel", "transformers:PreTrainedTokenizerBase"),
    "transformers.models.auto.auto_factory:_BaseAutoModelClass",
)
_TRANSFORMERS: Final = re.compile(r"^\s*(?:import|from)\s+transformers\b", re.MULTILINE)


def _encode(tokenizer: Any, text: Any, text_pair: Any = None, *args: Any, **options: Any) -> Any:
    """`encode_plus`."""
    if options.pop("pad_to_max_length", False):
        options.setdefault("padding", "max_length")
    return tokenizer(text, text_pair, *args, **options)


def _encode_batch(tokenizer: Any, batch_text_or_text_pairs: Any, **options: Any) -> Any:
    """`batch_encode_plus`, of texts or of pairs."""
    return _encode(tokenizer, batch_text_or_text_pairs, **options)


def _seq2seq_batch(tokenizer: Any, src_texts: Any, tgt_texts: Any = None, **options: Any) -> Any:
    """`prepare_seq2seq_batch`, with its defaults."""
    return tokenizer(src_texts, text_target=tgt_texts, **{"padding": "longest", "truncation": True} | options)


def _itself(model: Any, *_: Any, **__: Any) -> Any:
    return model


#: Methods -> "module:class" that gets them, and what they do.
METHODS: Final[Mapping[str, tuple[str, Callable[..., Any]]]] = {
    "batch_encode_plus": ("transformers:PreTrainedTokenizerBase", _encode_batch),
    "encode_plus": ("transformers:PreTrainedTokenizerBase", _encode),
    "prepare_seq2seq_batch": ("transformers:PreTrainedTokenizerBase", _seq2seq_batch),
    "reverse_bettertransformer": ("transformers:PreTrainedModel", _itself),
    "to_bettertransformer": ("transformers:PreTrainedModel", _itself),
}
#: All that is put back.
NAMES: Final = frozenset({*ALIASES, *ARGUMENTS, *METHODS})


def put_back(file: Path) -> None:
    """Put back what this file, or another of its folder, has the name of, be it as the key of a dict of arguments."""
    named: set[str] = set()
    for path in {file, *file.parent.glob("*.py")}:
        source = path.read_text("utf-8", "replace") if path.is_file() else ""
        if _TRANSFORMERS.search(source):
            named |= NAMES.intersection(re.findall(r"\w+", source))
    aliases = {name: _object(ALIASES[name]) for name in sorted(named & ALIASES.keys())}
    for name, value in aliases.items():  # only now: importing an image processor may put another module in its place
        _add(importlib.import_module("transformers"), name, value)
    for name in sorted(named & METHODS.keys()):
        owner, method = METHODS[name]
        _add(_object(owner), name, method)
    if named & ARGUMENTS:
        for loader in map(_object, _LOADERS):
            _translate(loader)


def _object(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def _add(owner: Any, name: str, value: Any) -> None:
    if not hasattr(owner, name):  # the model's own environment may have transformers 4
        setattr(owner, name, value)


def _translate(loader: Any) -> None:
    """Have `from_pretrained` of a class take the arguments of transformers 4, once."""
    original = vars(loader)["from_pretrained"].__func__
    if hasattr(original, "__wrapped__") and getattr(original, "__module__", None) == __name__:
        return

    @functools.wraps(original, assigned=("__name__", "__qualname__", "__doc__"))
    def from_pretrained(cls: type, *args: Any, **options: Any) -> Any:
        return original(cls, *args, **_arguments(options))

    loader.from_pretrained = classmethod(from_pretrained)


def _arguments(options: dict[str, Any]) -> dict[str, Any]:
    """The arguments of transformers 5 that mean the same."""
    bits = {name: options.pop(name) for name in ("load_in_4bit", "load_in_8bit") if name in options}
    if any(bits.values()) and options.get("quantization_config") is None:
        options["quantization_config"] = _object("transformers:BitsAndBytesConfig")(**bits)
    if "use_auth_token" in options:
        token = options.pop("use_auth_token")
        options.setdefault("token", token)
    return options
