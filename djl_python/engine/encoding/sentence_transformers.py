"""What sentence-transformers' files beside a checkpoint say: how hidden states become embeddings, and texts queries.

Runs in the front end, in workers and in engines; imports nothing of that library. modules.json names the modules in
their order, each with a folder; 1_Pooling/config.json says how tokens are pooled, config_sentence_transformers.json
which prompts there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from ...config import read_json_object
from ...core.errors import ModelLoadError

#: Ways of pooling, in the order in which sentence-transformers concatenates their results.
POOLINGS: Final = ("cls", "max", "mean", "mean_sqrt_len", "weightedmean", "lasttoken")
#: Their switches in 1_Pooling/config.json, but for cls and lasttoken: pooling_mode_<name>_tokens.
_SWITCHES: Final[Mapping[str, str]] = {
    "cls": "pooling_mode_cls_token",
    "lasttoken": "pooling_mode_lasttoken",
    **{name: f"pooling_mode_{name}_tokens" for name in ("max", "mean", "mean_sqrt_len", "weightedmean")},
}
#: Modules that change nothing when a model is used.
_WITHOUT_EFFECT: Final = frozenset({"Dropout"})
#: A dense layer's activation where its config.json names none.
_ACTIVATION: Final = "torch.nn.modules.activation.Tanh"
_ENCODERS: Final = frozenset({"Transformer", "MLMTransformer"})
_FILE: Final = "modules.json"


class Dense(msgspec.Struct, frozen=True):
    """A linear layer behind the pooling: its folder in the checkpoint, and its activation by torch's name."""

    folder: str
    activation: str


class Modules(msgspec.Struct, frozen=True, kw_only=True):
    """What is behind the hidden states, in this order: pooling, dense layers, normalization.

    Attributes:
        poolings: names of `POOLINGS`, whose results are concatenated; (): the model's own kind tells.
        includes_prompt: whether a prompt's tokens are pooled too.
        dense: the layers.
        normalizes: whether embeddings have unit length.
        is_sparse: whether the model is SPLADE, whose embeddings are weights of the vocabulary's entries.
    """

    poolings: tuple[str, ...] = ()
    includes_prompt: bool = True
    dense: tuple[Dense, ...] = ()
    normalizes: bool = True
    is_sparse: bool = False


class SentenceTransformer(msgspec.Struct, frozen=True, kw_only=True):
    """The files of one checkpoint.

    Attributes:
        is_there: whether there is a modules.json.
        modules: what is behind the hidden states.
        prompts: what is written before a text, by name.
        default_prompt: the name of the one that is written where a request names none; "": none is.
        similarity: how two embeddings are compared: cosine, dot, euclidean or manhattan.
        max_tokens: most tokens of a text; None: as many as the model takes.
        lower_case: whether texts are lower-cased before they are tokenized.
    """

    is_there: bool = False
    modules: Modules = Modules()
    prompts: dict[str, str] = {}
    default_prompt: str = ""
    similarity: str = "cosine"
    max_tokens: int | None = None
    lower_case: bool = False

    @classmethod
    def read(cls, path: Path) -> SentenceTransformer:
        """Read the files of the checkpoint in `path`; missing files count as empty.

        Raises:
            ModelLoadError: a file is broken, or a module is none of those that are computed here.
        """
        settings = read_json_object(path / "config_sentence_transformers.json")
        own = read_json_object(path / "sentence_bert_config.json")
        entries = _entries(path / _FILE)
        try:
            return cls(
                is_there=bool(entries),
                modules=_modules(path, entries) if entries else Modules(),
                prompts={
                    name: msgspec.convert(text, str) for name, text in (settings.get("prompts") or {}).items() if text
                },
                default_prompt=msgspec.convert(settings.get("default_prompt_name") or "", str),
                similarity=msgspec.convert(settings.get("similarity_fn_name") or "cosine", str),
                max_tokens=msgspec.convert(own.get("max_seq_length"), int | None),
                lower_case=msgspec.convert(own.get("do_lower_case", False), bool),
            )
        except (msgspec.ValidationError, AttributeError) as exc:
            raise ModelLoadError(f"{path}: the files of sentence-transformers: {exc}") from exc


class _Entry(msgspec.Struct):
    """A module in modules.json; `type` is the path of its class."""

    type: str
    path: str = ""

    @property
    def kind(self) -> str:
        return self.type.rpartition(".")[2]


def _entries(file: Path) -> list[_Entry]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[_Entry])
    except FileNotFoundError:
        return []
    except OSError as exc:
        raise ModelLoadError(f"{file} can't be read: {exc.strerror}") from exc
    except msgspec.MsgspecError as exc:
        raise ModelLoadError(f"{file}: {exc}; expected a list of modules with their types and paths") from exc


def _modules(path: Path, entries: list[_Entry]) -> Modules:
    first, *others = entries
    if first.kind not in _ENCODERS:
        raise _unknown(path, first, "as the first module, which has to be a Transformer")
    if first.path.strip("./"):
        raise ModelLoadError(f"{path / _FILE}: the Transformer is in {first.path}; expected it beside modules.json")
    modules = Modules(normalizes=False)
    for entry in others:
        modules = _with(modules, path, entry)
    return modules


def _with(modules: Modules, path: Path, entry: _Entry) -> Modules:
    """The modules with one more at the end."""
    replace = msgspec.structs.replace
    if entry.kind in _WITHOUT_EFFECT:
        return modules
    if modules.normalizes:
        raise _unknown(path, entry, "behind Normalize, which has to be the last")
    match entry.kind:
        case "Pooling" if not modules.dense:
            config = read_json_object(path / entry.path / "config.json")
            return replace(
                modules,
                poolings=_poolings(config, path / entry.path),
                includes_prompt=config.get("include_prompt", True),
            )
        case "SpladePooling":
            return replace(modules, is_sparse=True)
        case "Dense":
            config = read_json_object(path / entry.path / "config.json")
            activation = str(config.get("activation_function") or _ACTIVATION)
            return replace(modules, dense=(*modules.dense, Dense(entry.path, activation.rpartition(".")[2])))
        case "Normalize":
            return replace(modules, normalizes=True)
    raise _unknown(path, entry, "")


def _poolings(config: Mapping[str, Any], folder: Path) -> tuple[str, ...]:
    named = config.get("pooling_mode")
    chosen = [named] if isinstance(named, str) else named
    if not isinstance(chosen, list):
        chosen = [name for name in POOLINGS if config.get(_SWITCHES[name]) is True]
    if not chosen or not set(chosen) <= set(POOLINGS):
        raise ModelLoadError(f"{folder / 'config.json'}: expected a way of pooling: {', '.join(POOLINGS)}")
    return tuple(name for name in POOLINGS if name in chosen)


def _unknown(path: Path, entry: _Entry, where: str) -> ModelLoadError:
    return ModelLoadError(
        f"{path / _FILE}: the module {entry.type}{f' {where}' if where else ''} is not computed here; expected a "
        "Transformer, then Pooling or SpladePooling, Dense, Normalize. A model.py with handle(inputs) can serve it, "
        "with sentence_transformers' SentenceTransformer for example"
    )
