"""Which models to serve: DJL's `name:version:engine:devices=url`, and the search of a model store.

Runs in the front end, at start-up.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec

from ..core.errors import ConfigError
from ..core.faults import Faults
from ..core.names import choices
from .binding import unquoted
from .settings.server import ServerConfig
from .settings.values import DEVICES_EXPECTED, DEVICES_PATTERN
from .sources import ARCHIVE_SUFFIXES, shown_url
from .sources.named import named_url

log = logging.getLogger(__name__)

#: A directory that holds one of these is a model.
MODEL_MARKERS: Final = ("serving.properties", "model.py", "config.json", "MAR-INF")

GGUF_SUFFIX: Final = ".gguf"
#: The end of the name of a GGUF model's second or later file.
_FURTHER_PART: Final = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$")

_SEPARATORS = re.compile(r"[, ]+")
#: A name is a segment of URLs, or a hub's id, owner/name or hf.co/owner/name:kind: clients send those as the model's
#: name.
_NAME = re.compile(r"[^\s/?#%]+|(?:(?:hf|huggingface)\.co/)?[\w.-]+/[\w.-]+(?::[\w.-]+)?")
_VERSION = re.compile(r"[^\s/?#%:]{1,128}")
#: owner/model of the Hugging Face Hub.
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_ENDPOINT = re.compile(r"\[?[\w-][\w.-]*/[\w.-]+(?::.*)?\]?")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_NOT_MODELS = frozenset({"__pycache__", "lost+found"})


@contextlib.contextmanager
def reading_models() -> Iterator[None]:
    """Refuse, in one line, what the system does not let this process read of a model: a directory of another user's.

    Raises:
        ConfigError: names the file.
    """
    try:
        yield
    except OSError as exc:
        raise ConfigError(f"{exc.filename}: {exc.strerror}") from exc


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One model to serve. Empty fields were not given; `url` is a local path or a URL.

    `parameters` and `settings` are pairs of a setting's key and its value, as text. Parameters came with the
    registration at run time, and are stronger than every other source of settings; settings came with the command line,
    and are stronger than serving.properties.
    """

    name: str
    version: str = ""
    engine: str = ""
    devices: str = ""
    url: str
    parameters: tuple[tuple[str, str], ...] = ()
    settings: tuple[tuple[str, str], ...] = ()


def is_model_name(name: str) -> bool:
    """Whether a model may have this name: no blanks, ?, # or %, and / as in owner/name or hf.co/owner/name only."""
    return _NAME.fullmatch(name) is not None and name not in (".", "..")


def split_model_specs(text: str) -> list[str]:
    """The items of a list that is separated by commas or blanks. A path that exists is one item, even with blanks."""
    text = text.strip()
    if text and Path(_split_endpoint(text)[1]).exists():
        return [text]
    return [item for item in _SEPARATORS.split(text) if item]


@reading_models()
def parse_model_spec(text: str) -> ModelSpec:
    """Read `name:version:engine:devices=url`; the part before `=` may be in brackets, or missing.

    Raises:
        ConfigError: no url, a name that a URL path can't carry, or invalid devices.
    """
    endpoint, url = _split_endpoint(text.strip())
    if not url:
        raise ConfigError(f"model {text!r}: expected a path or URL, or name:version:engine:devices=url")
    # Three splits at most: a device may be written cuda:0.
    fields = endpoint.removeprefix("[").removesuffix("]").split(":", 3)
    name, version, engine, devices = [*fields, "", "", ""][:4]
    return _checked(ModelSpec(name=name, version=version, engine=engine, devices=devices, url=url), text)


def infer_name(url: str) -> str:
    """The last part of a path or URL without an archive's suffix; all but letters, digits and _ becomes _."""
    path = unquote(urlsplit(url).path) if _SCHEME.match(url) else url
    last = path.rstrip("/").rpartition("/")[2] or urlsplit(url).netloc
    if last in ("", ".", ".."):
        last = Path(path).resolve().name or "model"
    for suffix in (*ARCHIVE_SUFFIXES, GGUF_SUFFIX):
        if last.lower().endswith(suffix) and len(last) > len(suffix):
            last = last[: -len(suffix)]
            break
    return re.sub(r"\W", "_", last)


@reading_models()
def registered_spec(
    url: str,
    model_store: str,
    *,
    name: str = "",
    version: str = "",
    engine: str = "",
    devices: str = "",
    parameters: Mapping[str, str] | None = None,
) -> ModelSpec:
    """The spec of a model that is registered at run time; a relative path may be one in the model store.

    Raises:
        ConfigError: the name or the version can't be one, or the devices are invalid.
    """
    given = tuple((parameters or {}).items())
    spec = ModelSpec(name=name, version=version, engine=engine, devices=devices, url=url, parameters=given)
    if version and not _VERSION.fullmatch(version):
        raise ConfigError(f"{version!r} can't be a model's version: no blanks, /, ?, #, % or :")
    return _resolved(_checked(spec, shown_url(url)), model_store)


@reading_models()
def find_models(
    server: ServerConfig, specs: Sequence[str | ModelSpec] = (), environ: Mapping[str, str] = os.environ
) -> list[ModelSpec]:
    """The models that the server should load, in order.

    `specs` are the command line's; `server.load_models` replaces them where there are none, or SERVING_LOAD_MODELS is
    set. ALL stands for all models of the model store, NONE for no model; HF_MODEL_ID adds one.

    Raises:
        ConfigError: a spec is wrong, the model store is not a directory, or two models have one name and version; a
            line for each.
    """
    in_environment = server.provenance.get("load_models", "").startswith("environment")
    if specs and in_environment:
        log.warning("environment SERVING_LOAD_MODELS: %s counts, not the command line's models", server.load_models)
    items: list[str | ModelSpec] = []
    for spec in [server.load_models] if in_environment else specs or [server.load_models]:
        items += [spec] if isinstance(spec, ModelSpec) else split_model_specs(spec)
    models: list[ModelSpec] = []
    faults = Faults()
    for item in items:
        with faults.collected():
            if item == "ALL":
                models += _scan(server.model_store)
            elif isinstance(item, ModelSpec):
                models.append(item)
            elif item != "NONE":
                models.append(_resolved(parse_model_spec(item), server.model_store))
    models += _from_environment(environ, models)
    seen: dict[tuple[str, str], ModelSpec] = {}
    for spec in models:
        other = seen.setdefault((spec.name, spec.version), spec)
        if other is not spec:
            version = f" version {spec.version}" if spec.version else ""
            faults.add(
                [f"two models are called {spec.name}{version}: {shown_url(other.url)} and {shown_url(spec.url)}"]
            )
    faults.refuse(ConfigError)
    return models


def check_default_model(server: ServerConfig, specs: Sequence[ModelSpec]) -> None:
    """Refuse a default model that is none of the models.

    Raises:
        ConfigError: names those that there are.
    """
    name, names = server.default_model, [spec.name for spec in specs]
    if name and name not in names:
        source = server.provenance.get("default_model", "default")
        raise ConfigError(f"{source}: default_model={name}: no such model; there is {choices(name, names)}")


def model_directory(path: Path) -> Path:
    """`path`, or the model below it where only single directories lie between (an archive with a root folder)."""
    inner = path
    while not any((inner / marker).exists() for marker in MODEL_MARKERS):
        entries = list(_visible(inner))
        if len(entries) != 1 or not entries[0].is_dir():
            return path
        inner = entries[0]
    return inner


def _checked(spec: ModelSpec, text: str) -> ModelSpec:
    """The spec, with a name if it has none.

    Raises:
        ConfigError: `text` has a name that a URL path can't carry, or invalid devices.
    """
    name = spec.name or infer_name(spec.url)
    if not is_model_name(name):
        raise ConfigError(
            f"model {text!r}: {name!r} can't be a model's name: no blanks, ?, # or %, and one / as in owner/name"
        )
    if spec.devices and not re.match(DEVICES_PATTERN, spec.devices):
        raise ConfigError(f"model {text!r}: devices {spec.devices!r}: expected {DEVICES_EXPECTED}")
    return msgspec.structs.replace(spec, name=name)


def _split_endpoint(text: str) -> tuple[str, str]:
    """(name:version:engine:devices, url). A path that exists, or a URL with = in it, is not split.

    `org/model=DIR` names the model in DIR, unless a file or directory `org/model=DIR` exists.
    """
    endpoint, equals, url = text.partition("=")
    if not equals or Path(text).exists():
        return "", text
    if any(mark in endpoint for mark in "/?") and not (_HUB_ENDPOINT.fullmatch(endpoint) and url):
        return "", text
    return endpoint.strip(), url.strip()


def _resolved(spec: ModelSpec, store: str) -> ModelSpec:
    """The spec; a path that does not exist here is replaced by the one in the model store, where that exists.

    Where it does not exist there either, it may be one of `NAMED_MODELS`, and owner/model is a model of the Hugging
    Face Hub. A path below a directory that is here is a mistake in the path.
    """
    if _SCHEME.match(spec.url) or Path(spec.url).exists():
        return spec
    if store and (Path(store) / spec.url).exists():
        return msgspec.structs.replace(spec, url=str(Path(store) / spec.url))
    if named := named_url(spec.url):
        return msgspec.structs.replace(spec, url=named)
    if _HUB_ID.fullmatch(spec.url) and not any(Path(folder, spec.url).parent.exists() for folder in (".", store)):
        return msgspec.structs.replace(spec, url=f"hf://{spec.url}")
    return spec


def _scan(store: str) -> list[ModelSpec]:
    if not store:
        return []
    root = Path(store)
    if not root.is_dir():
        raise ConfigError(f"model_store {store}: not a directory")
    if any((root / marker).exists() for marker in MODEL_MARKERS):
        return [parse_model_spec(str(root.absolute()))]
    visible = list(_visible(root))
    models = [entry for entry in visible if entry.is_dir() and not _is_empty(entry)]
    models += [entry for entry in visible if entry.is_file() and _is_model_file(entry.name.lower())]
    if not models and any(entry.suffix in (".py", ".safetensors") for entry in visible):
        models = [root]
    return [ModelSpec(name=infer_name(str(entry.absolute())), url=str(entry.absolute())) for entry in models]


def _is_model_file(name: str) -> bool:
    """Whether a file of this name, in lower case, is a model: an archive, or a GGUF file. Further parts are not."""
    if name.endswith(GGUF_SUFFIX):
        return _FURTHER_PART.search(name) is None and "mmproj" not in name
    return name.endswith(ARCHIVE_SUFFIXES)


def _is_empty(directory: Path) -> bool:
    try:
        return not any(_visible(directory))
    except PermissionError:
        return False  # its loading says so, and costs no other model anything


def _from_environment(environ: Mapping[str, str], models: Sequence[ModelSpec]) -> Iterator[ModelSpec]:
    """HF_MODEL_ID's model; else OPTION_MODEL_ID's, or TGI's MODEL_ID's, if no other model was found."""
    model_id = unquoted(environ.get("HF_MODEL_ID", ""))
    if not model_id and not models:
        model_id = unquoted(environ.get("OPTION_MODEL_ID", "")) or unquoted(environ.get("MODEL_ID", ""))
    if not model_id:
        return
    if Path(model_id).is_dir():
        if not any(Path(spec.url).absolute() == Path(model_id).absolute() for spec in models):
            yield ModelSpec(name=infer_name(model_id), url=model_id)
    elif _SCHEME.match(model_id):
        yield ModelSpec(name=infer_name(model_id), url=model_id)
    else:
        yield ModelSpec(name=re.sub(r"\W", "_", model_id), url=f"hf://{model_id}")


def _visible(directory: Path) -> Iterator[Path]:
    """A directory's entries, sorted by name, without hidden ones and those that are never models."""
    for entry in sorted(directory.iterdir()):
        if not entry.name.startswith(".") and entry.name not in _NOT_MODELS:
            yield entry
