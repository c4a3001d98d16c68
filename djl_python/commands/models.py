"""The arguments that name models and settings, and the configuration that results."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..core.faults import Faults

if TYPE_CHECKING:  # --help and mistakes in the command line do not wait for it
    from ..config import ModelSpec, ServerConfig
    from ..config.command_line import Given

#: Where SageMaker and the Docker image put the model.
CONTAINER_STORE: Final = Path("/opt/ml/model")


def add_models(parser: argparse.ArgumentParser) -> None:
    """Add the options that name models, and those that set something."""
    parser.add_argument(
        *("-m", "--models", "--model"),
        dest="models",
        action="append",
        default=[],
        metavar="MODEL",
        help="a model: a path, a URL, owner/model of the Hugging Face Hub, or name:version:engine:devices=URL; may be "
        "repeated",
    )
    parser.add_argument("-s", "--model-store", metavar="DIR", help="every model of this directory")
    parser.add_argument("-f", "--config-file", type=Path, metavar="FILE", help="a config.properties")
    parser.add_argument("--served-model-name", metavar="NAME", help="the name of the only model")
    add_settings(parser)


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add `--set`."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="[MODEL:]KEY=VALUE",
        help="any setting, of every model or of the named one; also as an option: --max-model-len 2048, --dtype bf16, "
        "--enable-lora (djl-serving help settings lists them); may be repeated",
    )


def settings_given(parser: argparse.ArgumentParser, options: argparse.Namespace, url: str) -> list[Given]:
    """The settings of `--set`, on a command line that either names a server or starts one.

    Args:
        url: the URL of the named server, which has its own settings: then `--set` ends the process with status 2.

    Raises:
        ConfigError: there is no such setting.
    """
    if not options.set:
        return []
    if url:
        parser.error(f"--set {options.set[0]}: {url} is a server with settings of its own; --set is for a model")
    from ..config.command_line import read_setting

    return [read_setting(text) for text in options.set]


class Models:
    """The configuration of a command line.

    Attributes:
        server: the server's configuration.
        faults: its faults.
    """

    def __init__(self, options: argparse.Namespace, overrides: Mapping[str, str], api_keys: Sequence[str] = ()) -> None:
        """Read the server's configuration.

        Args:
            options: of `add_models`, with the models that are named without -m as `model`.
            overrides: keys of config.properties that the command's other options set.
            api_keys: of the command line.

        Raises:
            ConfigError: there is no such setting, or the configuration can't be read.
        """
        from ..config import read_server_config
        from ..config.command_line import overrides_of, read_setting

        self._named: list[str] = [*options.model, *options.models]
        self._served_name: str = options.served_model_name or ""
        self._given: list[Given] = [read_setting(text) for text in options.set]
        overrides = {**overrides_of(self._given), **overrides}
        if options.model_store is not None:
            overrides = {**overrides, "model_store": options.model_store}
        self.server: ServerConfig
        self.faults: Faults
        self.server, self.faults = read_server_config(options.config_file, overrides, api_keys=api_keys)
        if not self._named and self._looks_in_container():
            in_container = {**overrides, "model_store": str(CONTAINER_STORE)}
            self.server, self.faults = read_server_config(options.config_file, in_container, api_keys=api_keys)
        if self._named and options.model_store:
            self._named.append("ALL")

    def _looks_in_container(self) -> bool:
        return not self.server.model_store and self.server.load_models != "NONE" and CONTAINER_STORE.is_dir()

    @property
    def may_be_none(self) -> bool:
        """Whether a server without models is meant: they come later."""
        server = self.server
        return server.load_models == "NONE" or "NONE" in self._named or server.model_url_pattern is not None

    def find(self) -> list[ModelSpec]:
        """The models, each with its settings.

        Raises:
            ConfigError: a model's name or place is wrong, or a setting is for a model that there is not.
        """
        import msgspec

        from ..config import find_models
        from ..config.command_line import with_settings
        from ..core.errors import ConfigError

        specs = find_models(self.server, self._named)
        if self._served_name:
            if len(specs) != 1:
                raise ConfigError(
                    f"--served-model-name {self._served_name}: there are {len(specs)} models; expected one: name each "
                    "of several as -m NAME=MODEL"
                )
            specs = [msgspec.structs.replace(specs[0], name=self._served_name)]
        return with_settings(specs, self._given)


def nothing_to_serve(model_store: str) -> str:
    """The message where no model is named."""
    if model_store:
        return f"djl-serving: there is no model in {model_store}; see djl-serving --help"
    return (
        "djl-serving: nothing to serve. Say what:\n"
        "  djl-serving DIR                  a directory with a serving.properties, a model.py or a checkpoint\n"
        "  djl-serving -s DIR               every model of a directory\n"
        "  djl-serving owner/model          a model of the Hugging Face Hub\n"
        "  djl-serving template://demo      a small model that comes with this package\n"
        "  djl-serving --help               everything else"
    )
