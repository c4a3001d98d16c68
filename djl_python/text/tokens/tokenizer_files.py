"""Reads the files of a checkpoint's tokenizer; errors say which file is broken, and how.

Runs in the worker.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import tokenizers

from ...config import Checkpoint, read_json_object
from ...core.errors import ModelLoadError
from ...usercode.errors import one_line
from . import pipelines
from .encoders import of_lines

#: Exceptions of reading a file with unexpected contents.
_BROKEN: Final = (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError)


_TYPE_IDS: Final = "token_type_ids"
#: The vocabulary of BERT and its kind, where there is no tokenizer.json.
_LINES: Final = "vocab.txt"
#: Files that tokenizers are made of.
_VOCABULARIES: Final = ("tokenizer.json", "vocab*", "*.model", "*.tiktoken", "tekken.json")


def check_tokenizer(path: Path) -> None:
    """Refuse a checkpoint without a tokenizer's files, or with broken JSON in them.

    Raises:
        ModelLoadError: says which.
    """
    files = TokenizerFiles.read(path)
    if "auto_map" not in files.config and not any(next(path.glob(pattern), None) for pattern in _VOCABULARIES):
        raise ModelLoadError(
            f"{path}: there is no tokenizer: expected tokenizer.json, or the files that transformers makes it of"
        )


class TokenizerFiles(msgspec.Struct, frozen=True):
    """The tokenizer's files in a checkpoint's directory. `tokenizer` is the bytes of tokenizer.json, or b""."""

    path: Path
    tokenizer: bytes
    config: dict[str, Any]
    model_config: dict[str, Any]
    special_tokens: dict[str, Any]
    chat_templates: dict[str, str]
    eos_ids: tuple[int, ...]

    @classmethod
    def read(cls, path: Path) -> TokenizerFiles:
        """Read the files in the directory `path`; missing files count as empty.

        Raises:
            ModelLoadError: one of them is broken.
        """
        config = read_json_object(path / "tokenizer_config.json")
        model_config = read_json_object(path / "config.json")
        generation = Checkpoint.read(path).generation_config
        tokenizer = path / "tokenizer.json"
        with _blamed(tokenizer):
            data = tokenizer.read_bytes() if tokenizer.is_file() else b""
        return cls(
            path=path,
            tokenizer=data,
            config=config,
            model_config=model_config,
            # Older checkpoints have the names here; newer ones have both, and then tokenizer_config.json wins.
            special_tokens={}
            if "added_tokens_decoder" in config
            else read_json_object(path / "special_tokens_map.json"),
            chat_templates=_chat_templates(path, config.get("chat_template")),
            eos_ids=_eos_ids(generation, path / "generation_config.json")
            or _eos_ids(model_config, path / "config.json"),
        )

    def backend(self) -> tuple[tokenizers.Tokenizer, dict[str, str], bool] | None:
        """The tokenizer with its added tokens, its special tokens by name, and whether it tells the two texts of a pair
        apart; None: transformers must load it.

        Raises:
            ModelLoadError: one of the files is broken, or does not fit the others.
        """
        file = self.path / ("tokenizer.json" if self.tokenizer else _LINES)
        if not file.is_file():
            return None
        with _blamed(file):
            parts = msgspec.json.decode(self.tokenizer, type=_Parts) if self.tokenizer else None
        byte_level = parts is not None and b'"ByteLevel"' in bytes(parts.pre_tokenizer) + bytes(parts.decoder)
        with _blamed(self.path, "the tokenizer's class (tokenizer_config.json, config.json)"):
            of_class = pipelines.choose(self.config, self.model_config, byte_level=byte_level)
        if of_class is None or not (self.tokenizer or of_class.reads_lines):
            return None
        with _blamed(file):
            if self.tokenizer:
                backend = tokenizers.Tokenizer.from_buffer(self.tokenizer)
            else:
                backend = of_lines(file.read_text(encoding="utf-8"))
        with _blamed(file, "it does not fit the tokenizer's class (tokenizer_config.json, config.json)"):
            of_class.pipeline(backend, self.config)
        with _blamed(self.path, "the tokens of tokenizer_config.json (and special_tokens_map.json)"):
            special = pipelines.add_tokens(backend, self.config, self.special_tokens, of_class.defaults)
        if of_class.ends is not None:
            with _blamed(file, "it does not fit the tokenizer's class (tokenizer_config.json, config.json)"):
                of_class.ends(backend, self.config, special)
        backend.no_truncation()
        backend.no_padding()
        names = self.config.get("model_input_names")
        return backend, special, of_class.has_type_ids if names is None else _TYPE_IDS in names


class _Parts(msgspec.Struct):
    """The parts of tokenizer.json that identify its pipeline."""

    model: msgspec.Raw
    pre_tokenizer: msgspec.Raw = msgspec.Raw(b"null")
    decoder: msgspec.Raw = msgspec.Raw(b"null")


class _Named(msgspec.Struct):
    """An entry of a list of chat templates."""

    name: str
    template: str


@contextlib.contextmanager
def _blamed(path: Path, what: str = "") -> Iterator[None]:
    """Turn exceptions here into an error about `path`, or `what` in it."""
    try:
        yield
    except _BROKEN as exc:
        cause = str(exc) if isinstance(exc, OSError | ValueError) else one_line(exc)
        raise ModelLoadError(": ".join(filter(None, (str(path), what, cause)))) from exc


def _eos_ids(config: dict[str, Any], file: Path) -> tuple[int, ...]:
    """The ids of `file`'s eos_token_id, which is absent, an int or a list of ints."""
    with _blamed(file, "eos_token_id"):
        value = msgspec.convert(config.get("eos_token_id"), int | list[int] | None)
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (value,)


def _chat_templates(path: Path, configured: Any) -> dict[str, str]:
    """Templates by name. Files override tokenizer_config.json as a whole, as in transformers.

    Image processors used to keep their templates in chat_template.json.
    """
    templates = {file.stem: _text(file) for file in sorted((path / "additional_chat_templates").glob("*.jinja"))}
    main = path / "chat_template.jinja"
    if main.is_file():
        templates["default"] = _text(main)
    if templates:
        return templates
    processors = path / "chat_template.json"
    return named_templates(read_json_object(processors).get("chat_template"), processors) or named_templates(
        configured, path / "tokenizer_config.json"
    )


def chosen_template(value: str, model_dir: Path) -> dict[str, str]:
    """The templates of `option.chat_template`: a file, relative to the model's directory, or a template itself.

    Raises:
        ModelLoadError: the file does not exist, or can't be read.
    """
    if any(mark in value for mark in "{}\n"):
        return {"default": value}
    if not (file := model_dir / value).is_file():
        raise ModelLoadError(f"option.chat_template={value}: there is no file {file}, and it is no template itself")
    return {"default": _text(file)}


def _text(file: Path) -> str:
    with _blamed(file):
        return file.read_text("utf-8")


def named_templates(configured: Any, file: Path) -> dict[str, str]:
    """The templates of a `chat_template` setting: one template, or a list or dict of named ones.

    Raises:
        ModelLoadError: it is something else; the fault of `file`.
    """
    with _blamed(file, "chat_template"):
        templates = msgspec.convert(configured, str | list[_Named] | dict[str, str] | None)
    if isinstance(templates, str):
        return {"default": templates}
    if isinstance(templates, list):
        return {entry.name: entry.template for entry in templates}
    return templates or {}
