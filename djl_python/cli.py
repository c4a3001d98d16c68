"""The command line: `djl-serving`.

Runs in the front end process before its event loop. Reads arguments and configuration, and reports mistakes in plain
words: a user's mistake never shows a traceback.

Exit codes: 0 served and was told to stop, or `check` found nothing wrong; 1 a configuration is wrong or no model
could be loaded; 2 the command line is wrong or names nothing to serve; 130 interrupted. `bench` has its own.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from . import __version__
from .core import logs
from .core.errors import ConfigError, ModelLoadError

if TYPE_CHECKING:  # --help and mistakes in the command line do not wait for it
    from .config import ModelConfig, ModelSpec

T = TypeVar("T")

#: Where SageMaker and the Docker image put the model.
CONTAINER_STORE: Final = Path("/opt/ml/model")

_DESCRIPTION: Final = """\
Serve large language models, or any Python model, over HTTP.

MODEL is a directory (or an archive or URL) with a serving.properties, a model.py or a checkpoint. Give it a name and
more in DJL's form: name:version:engine:devices=MODEL. Without any model, /opt/ml/model is served where it exists.
"""

_EXAMPLES: Final = """\
examples:
  djl-serving serving_templates/demo              serve one directory on 127.0.0.1:8080
  djl-serving -m llama=/models/llama-3 -m qwen=/models/qwen2
                                                  two models, at /predictions/llama and /predictions/qwen
  djl-serving -s /models --host 0.0.0.0 -p 9000   every model of a directory, for the whole network
  djl-serving check /models/llama-3               say what would be served, and what is wrong, without serving
  djl-serving bench /models/llama-3               how fast is it? (or any endpoint: djl-serving bench --help)

Settings come from the model's serving.properties, OPTION_* and SERVING_* variables, these options, and
config.properties (-f), the first of them that says something.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    _open_standard_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):  # escape what its encoding lacks, as Python does on stderr
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        if arguments[:1] == ["check"]:
            return _printed(_check, _check_parser().parse_args(arguments[1:]))
        if arguments[:1] == ["bench"]:
            from .bench.command import main as bench

            return _printed(bench, arguments[1:])
        return _serve(_parser().parse_args(arguments))
    except (ConfigError, ModelLoadError) as error:
        print(f"djl-serving: {_block(error.message)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _printed(command: Callable[[T], int], arguments: T) -> int:
    """The exit code of a command that prints its answer; 1 if whoever read it has read enough, like `head`."""
    try:
        return command(arguments)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is flushed at exit
        return 1


def _open_standard_streams() -> None:
    """Open /dev/null for each standard stream that is closed: else sockets get their numbers, and libuv aborts."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: the stream's
            os.set_inheritable(null, True)
            setattr(sys, name, os.fdopen(null, mode))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="djl-serving",
        usage="djl-serving [options] [MODEL ...]\n       djl-serving check DIR [options]\n"
        "       djl-serving bench URL|DIR [options]",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", nargs="*", metavar="MODEL", help="a model to serve, the same as -m MODEL")
    parser.add_argument(
        *("-m", "--models"),
        action="append",
        default=[],
        metavar="MODEL",
        help="a model to serve: a path, a URL, or name:version:engine:devices=URL; may be repeated",
    )
    parser.add_argument("-s", "--model-store", metavar="DIR", help="serve every model of this directory")
    parser.add_argument("-f", "--config-file", type=Path, metavar="FILE", help="a config.properties")
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("-p", "--port", help="port to listen on (default 8080; 0 takes a free one)")
    _add_log_level(parser)
    parser.add_argument("--version", action="version", version=f"djl-serving {__version__}")
    return parser


def _check_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="djl-serving check",
        description="Read a model's configuration without serving it: every setting and where it came from, warnings, "
        "and the handler that would be used. Without --load, no checkpoint is downloaded, and no code of the model's "
        "runs.",
    )
    parser.add_argument("model", metavar="DIR", help="a model directory, or name:version:engine:devices=URL")
    parser.add_argument("-f", "--config-file", type=Path, metavar="FILE", help="a config.properties")
    parser.add_argument(
        "--load",
        action="store_true",
        help="load the model as one worker would, say what runs it, why native kernels refuse it if they do, and what "
        "memory it takes; then end",
    )
    return parser


def _add_log_level(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log-level",
        choices=logs.LEVELS,
        default="info",
        help="what goes to stderr, of workers and engines too (default info; warning leaves out requests' lines)",
    )


def _serve(options: argparse.Namespace) -> int:
    from .config import find_models, load_model_config, load_server_config

    logs.configure(options.log_level)
    specs = [*options.model, *options.models]
    overrides = {
        key: value
        for key, value in (("host", options.host), ("port", options.port), ("model_store", options.model_store))
        if value is not None
    }
    config = load_server_config(options.config_file, overrides)
    if not specs and not config.model_store and CONTAINER_STORE.is_dir():
        config = load_server_config(options.config_file, {**overrides, "model_store": str(CONTAINER_STORE)})
    if specs and options.model_store:
        specs.append("ALL")
    found: dict[ModelSpec, ModelConfig | ConfigError] = {}
    for spec in find_models(config, specs):
        try:
            found[spec] = load_model_config(spec, config)
        except ConfigError as error:
            found[spec] = error
    if not found:
        print(_nothing_to_serve(config.model_store), file=sys.stderr)
        return 2
    broken = [known.message for known in found.values() if isinstance(known, ConfigError)]
    if len(broken) == len(found):
        raise ConfigError("\n".join(broken))
    from .server.lifecycle import serve  # only now: mistakes are reported without waiting for the HTTP server's imports

    return serve(config, found)


def _check(options: argparse.Namespace) -> int:
    from .checking import handler_of
    from .config import describe, load_model_config, load_server_config, parse_model_spec

    server = load_server_config(options.config_file, {})
    config = load_model_config(parse_model_spec(options.model), server)
    print(describe(config), end="")
    print(f"\nhandler\n  {handler_of(config)}", flush=True)
    if options.load:
        from .server.trial import load_once

        logs.configure("warning")
        print(f"\nloaded\n{load_once(config)}", flush=True)
    return 0


def _nothing_to_serve(model_store: str) -> str:
    if model_store:
        return f"djl-serving: there is no model in {model_store}; see djl-serving --help"
    return (
        "djl-serving: nothing to serve. Say what:\n"
        "  djl-serving DIR          a directory with a serving.properties, a model.py or a checkpoint\n"
        "  djl-serving -s DIR       every model of a directory\n"
        "  djl-serving --help       everything else"
    )


def _block(message: str) -> str:
    """The message with all lines but the first indented by two spaces."""
    return "\n  ".join(message.strip().splitlines())
