"""The command line: `djl-serving`.

Runs in the front end process before its event loop. Reads arguments and configuration, and reports mistakes in plain
words: a user's mistake never shows a traceback.

Exit codes: 0 served and was told to stop, or `check` found nothing wrong; 1 a configuration is wrong or no model
could be loaded; 2 the command line is wrong or names nothing to serve; 130 interrupted. Subcommands have their own.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from . import __version__
from .core import logs
from .core.errors import ConfigError, ModelLoadError
from .core.faults import Faults

if TYPE_CHECKING:  # --help and mistakes in the command line do not wait for it
    from .config import ModelConfig, ModelSpec, ServerConfig

T = TypeVar("T")

#: Where SageMaker and the Docker image put the model.
CONTAINER_STORE: Final = Path("/opt/ml/model")

#: Subcommands with a module of their own, which is imported when it is chosen: it has `main(arguments)` and `parser()`.
_COMMANDS: Final = {
    "batch": ".offline.command",
    "bench": ".bench.command",
    "chat": ".terminal.chat",
    "doctor": ".doctor.command",
    "engines": ".server.environments.command",
    "run": ".terminal.run",
}

_DESCRIPTION: Final = """\
Serve large language models, or any Python model, over HTTP.

MODEL is a directory with a serving.properties, a model.py or a checkpoint; an archive of one; or a URL (hf://, s3://,
http(s)://, template://). Give it a name and more in DJL's form: name:version:engine:devices=MODEL. Without any model,
/opt/ml/model is served where it exists.
"""

_EXAMPLES: Final = """\
examples:
  djl-serving template://demo                     a small model that comes with this package, on 127.0.0.1:8080
  djl-serving /models/llama-3                     a directory
  djl-serving chat=hf://owner/model               a model of the Hugging Face Hub, under the name chat
  djl-serving -m llama=/models/llama-3 -m qwen=/models/qwen2
                                                  two models, at /predictions/llama and /predictions/qwen
  djl-serving -s /models --host 0.0.0.0 -p 9000   every model of a directory, for the whole network
  djl-serving check /models/llama-3               say what would be served, and what is wrong, without serving
  djl-serving chat /models/llama-3                chat with it, here (or with any server: djl-serving chat URL)
  djl-serving run /models/llama-3 "Hello"         one answer, on stdout
  djl-serving bench /models/llama-3               how fast is it? (or any endpoint: djl-serving bench --help)
  djl-serving batch -m /models/llama-3 input.jsonl output.jsonl
                                                  answer a file of requests, overnight
  djl-serving engines                             what can run a model here, and how to install more
  djl-serving doctor                              what this machine has, what is wrong, what would be faster

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
        if arguments[:1] == ["completion"]:
            return _printed(_complete, arguments[1:])
        if arguments and arguments[0] in _COMMANDS:
            return _printed(_module(arguments[0]).main, arguments[1:])
        if arguments[:1] == ["serve"]:  # as vLLM's command and SageMaker's containers say it
            del arguments[0]
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


def _module(command: str) -> Any:
    """The module of one of `_COMMANDS`."""
    return importlib.import_module(_COMMANDS[command], __package__)


def _complete(arguments: Sequence[str]) -> int:
    from .terminal.completion import main

    parsers = {name: _module(name).parser() for name in _COMMANDS}
    return main(arguments, _parser(), {"serve": _parser(), "check": _check_parser(), **parsers})


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
        usage="djl-serving [serve] [options] [MODEL ...]\n       djl-serving check [options] [MODEL ...]\n"
        "       djl-serving chat MODEL|URL [options]\n       djl-serving run MODEL|URL [options] [PROMPT ...]\n"
        "       djl-serving bench URL|DIR [options]\n       djl-serving batch INPUT OUTPUT -m MODEL|-u URL\n"
        "       djl-serving engines [install NAME]\n"
        "       djl-serving doctor [--json]\n       djl-serving completion bash|zsh|fish",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", nargs="*", metavar="MODEL", help="a model to serve, the same as -m MODEL")
    _add_models(parser)
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("-p", "--port", help="port to listen on (default 8080; 0 takes a free one)")
    _add_log_level(parser)
    parser.add_argument("--log-format", choices=logs.FORMATS, help="text, or json: an object on each line")
    parser.add_argument("--version", action="version", version=f"djl-serving {__version__}")
    return parser


def _check_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="djl-serving check",
        description="Read the configuration of models without serving them: every setting and where it came from, "
        "warnings, the handler that would be used, what would be installed for it, and everything that start would "
        "refuse. Without any model, those that the server would serve. Without --load, nothing is downloaded or "
        "installed, and no code of a model's runs.",
    )
    parser.add_argument("model", nargs="*", metavar="DIR", help="a model directory, or name:version:engine:devices=URL")
    _add_models(parser)
    parser.add_argument(
        "--load",
        action="store_true",
        help="load each model as one worker would, say what runs it, why native kernels refuse it if they do, and what "
        "memory it takes; then end",
    )
    return parser


def _add_models(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        *("-m", "--models"),
        action="append",
        default=[],
        metavar="MODEL",
        help="a model: a path, a URL, or name:version:engine:devices=URL; may be repeated",
    )
    parser.add_argument("-s", "--model-store", metavar="DIR", help="every model of this directory")
    parser.add_argument("-f", "--config-file", type=Path, metavar="FILE", help="a config.properties")


def _add_log_level(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log-level",
        choices=logs.LEVELS,
        help="what goes to stderr, of workers and engines too (default info; warning leaves out requests' lines)",
    )


def _configured(options: argparse.Namespace, overrides: Mapping[str, str]) -> tuple[ServerConfig, list[str], Faults]:
    """The server's configuration, the models that the command line names, and what is wrong with the configuration."""
    from .config import read_server_config

    specs = [*options.model, *options.models]
    if options.model_store is not None:
        overrides = {**overrides, "model_store": options.model_store}
    config, faults = read_server_config(options.config_file, overrides)
    if not specs and not config.model_store and config.load_models != "NONE" and CONTAINER_STORE.is_dir():
        config, faults = read_server_config(options.config_file, {**overrides, "model_store": str(CONTAINER_STORE)})
    if specs and options.model_store:
        specs.append("ALL")
    return config, specs, faults


def _serve(options: argparse.Namespace) -> int:
    from .config import find_models, load_model_config, log_level

    try:
        level = options.log_level or log_level() or "info"
        logs.configure(level)
    except ValueError as exc:
        raise ConfigError(str(exc)) from None
    given = {"host": options.host, "port": options.port, "log_format": options.log_format}
    config, specs, faults = _configured(options, {key: value for key, value in given.items() if value is not None})
    faults.refuse(ConfigError)
    if config.log_format != logs.log_format():
        logs.configure(level, log_format=config.log_format)
    found: dict[ModelSpec, ModelConfig | ConfigError] = {}
    for spec in find_models(config, specs):
        try:
            found[spec] = load_model_config(spec, config)
        except ConfigError as error:
            found[spec] = error
    starts_empty = config.load_models == "NONE" or "NONE" in specs or config.model_url_pattern is not None
    if not found and not starts_empty:
        print(_nothing_to_serve(config.model_store), file=sys.stderr)
        return 2
    broken = [known.message for known in found.values() if isinstance(known, ConfigError)]
    if broken and len(broken) == len(found):
        raise ConfigError("\n".join(broken))
    from .server.lifecycle import serve  # only now: mistakes are reported without waiting for the HTTP server's imports

    return serve(config, found)


def _check(options: argparse.Namespace) -> int:
    """Print what is known of each model to stdout, and everything that start would refuse to stderr."""
    from .config import check_default_model, find_models

    server, named, wrong = _configured(options, {})
    specs: list[ModelSpec] = []
    with wrong.collected():
        specs = find_models(server, named)
    with wrong.collected():
        check_default_model(server, specs)
    if not specs and not wrong and server.load_models != "NONE":
        print(_nothing_to_serve(server.model_store), file=sys.stderr)
        return 2
    blocks = [_check_model(spec, server, options) for spec in specs]
    refused = [wrong.message, *blocks] if len(specs) < 2 else [wrong.message, *map(_titled, specs, blocks)]
    for message in filter(None, refused):
        print(f"djl-serving: {_block(message)}", file=sys.stderr)
    return 1 if any(refused) else 0


def _titled(spec: ModelSpec, faults: str) -> str:
    return f"model {spec.name}:\n{faults}" if faults else ""


def _check_model(spec: ModelSpec, server: ServerConfig, options: argparse.Namespace) -> str:
    """Print what is known of a model; returns what is wrong with it, a line for each fault, or ""."""
    from .checking import handler_of
    from .config import describe, read_model_config
    from .server.environments import plan_of

    faults = Faults()
    with faults.collected():
        config, wrong = read_model_config(spec, server)
        faults.add(wrong)
        print(describe(config), end="")
        with faults.collected():
            if (plan := plan_of(config)) is not None:
                print(f"\nenvironment\n{plan.described()}")
        print(f"\nhandler\n  {handler_of(config)}", flush=True)
        if options.load and not faults:
            from .server.trial import load_once

            logs.configure("warning")
            print(f"\nloaded\n{load_once(config)}", flush=True)
    return faults.message


def _nothing_to_serve(model_store: str) -> str:
    if model_store:
        return f"djl-serving: there is no model in {model_store}; see djl-serving --help"
    return (
        "djl-serving: nothing to serve. Say what:\n"
        "  djl-serving DIR                  a directory with a serving.properties, a model.py or a checkpoint\n"
        "  djl-serving -s DIR               every model of a directory\n"
        "  djl-serving hf://owner/model     a model of the Hugging Face Hub\n"
        "  djl-serving template://demo      a small model that comes with this package\n"
        "  djl-serving --help               everything else"
    )


def _block(message: str) -> str:
    """The message with all lines but the first indented by two spaces."""
    return "\n  ".join(message.strip().splitlines())
