"""The command `djl-serving check`: shows what would be served, and its faults, without serving.

Runs in the command's own process. For each model the verdict comes first, and all its faults, on stderr; then its
memory, its devices, and its settings. Exit codes: 0 nothing is wrong; 1 start would refuse something; 2 the command
line is wrong or names no model.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ..core import logs
from ..core.faults import Faults
from ..core.help_text import HelpFormatter
from .models import Models, add_models, nothing_to_serve
from .parsing import block, parse

if TYPE_CHECKING:  # --help does not wait for it
    from ..config import ModelConfig, ModelSpec, ServerConfig
    from ..engine.builtin.memory_need import MemoryNeed

_EXAMPLES: Final = """\
examples:
  djl-serving check /models/llama-3                            one model, with its settings
  djl-serving check /models/llama-3 --set dtype=bf16           ... as it would be with this setting
  djl-serving check -s /models --all                           every model of a directory, defaults too
  djl-serving check /models/llama-3 --load                     load it, and say what runs it
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="djl-serving check",
        description="Read the configuration of models without serving them: whether they would be served, what start "
        "would refuse, warnings, the handler that would be used, what memory it takes, what would be installed for it, "
        "and what is set, with where it was set. Without any model, those that the server would serve. Without --load, "
        "nothing is downloaded or installed, no code of a model's runs, and what start would download is listed as not "
        "looked at.",
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
    )
    made.add_argument("model", nargs="*", metavar="DIR", help="a model directory, or name:version:engine:devices=URL")
    add_models(made)
    made.add_argument("--all", action="store_true", help="show the settings that have their defaults too")
    made.add_argument(
        "--load",
        action="store_true",
        help="load each model as one worker would, say what runs it, why native kernels refuse it if they do, and what "
        "memory it takes; then end",
    )
    return made


def main(arguments: Sequence[str]) -> int:
    """Run `djl-serving check ARGUMENTS`; returns the exit code."""
    from ..config import check_default_model
    from ..server.tls.certificates import certificates

    options = parse(parser(), arguments)
    models = Models(options, {})
    wrong = models.faults
    specs: list[ModelSpec] = []
    with wrong.collected():
        specs = models.find()
    with wrong.collected():
        check_default_model(models.server, specs)
    with wrong.collected():
        certificates(models.server)
    if not specs and not wrong and models.server.load_models != "NONE":
        print(nothing_to_serve(models.server.model_store), file=sys.stderr)
        return 2
    _print_faults(wrong.message)
    refused = bool(wrong)
    for number, spec in enumerate(specs):
        if number:
            print()
        refused |= _check(spec, models.server, options, title=f"model {spec.name}:\n" if len(specs) > 1 else "")
    return 1 if refused else 0


def _print_faults(faults: str) -> None:
    """Print faults to stderr, below what has been printed to stdout."""
    if faults:
        sys.stdout.flush()
        print(f"djl-serving: {block(faults)}", file=sys.stderr, flush=True)


def _check(spec: ModelSpec, server: ServerConfig, options: argparse.Namespace, title: str) -> bool:
    """Print a model's description; returns whether start would refuse it.

    Args:
        title: put before its faults.
    """
    from ..config import describe
    from ..server.environments import plan_of
    from .handler_check import handler_of

    faults = Faults()
    config: ModelConfig | None = None
    handler = plan = loaded = unseen = ""
    remarks: list[str] = []
    with faults.collected():
        config, wrong, unseen = _read(spec, server, download=options.load)
        faults.add(wrong)
        if not unseen:
            with faults.collected():
                if (planned := plan_of(config)) is not None:
                    plan = planned.described()
            with faults.collected():
                handler, *remarks = handler_of(config)
            unseen = "" if options.load else _checkpoint_elsewhere(config)
        if options.load and not faults:
            from ..server.load_check import load_once

            logs.configure("warning")
            loaded = load_once(spec, config, server)
    warnings = [*(config.warnings if config is not None else ()), *remarks]
    print(f"model {spec.name}: {_verdict(len(list(faults)), len(warnings), loaded=bool(loaded), all_seen=not unseen)}")
    _print_faults(title + faults.message if faults else "")
    for name, text in (
        ("warnings", "\n".join(f"  {warning}" for warning in warnings)),
        ("handler", f"  {handler}" if handler else ""),
        ("GGUF file", _gguf(config) if config is not None and handler else ""),
        ("memory", _memory(config) if config is not None and handler else ""),
        ("not looked at", unseen),
        ("loaded", loaded),
        ("environment", plan),
    ):
        if text:
            print(f"\n{name}\n{text}")
    if config is not None:
        print(f"\n{describe(config, defaults=options.all)}", end="", flush=True)
    return bool(faults)


def _read(spec: ModelSpec, server: ServerConfig, *, download: bool) -> tuple[ModelConfig, Faults, str]:
    """A model's configuration, its faults, and an indented line about parts that were not checked."""
    from ..config import read_model_config
    from ..config.sources import shown_url
    from ..sources import stays_here
    from ..sources.model_config import fetch_and_read, is_of_hub

    if download or stays_here(spec.url) or is_of_hub(spec):
        return *fetch_and_read(spec, server), ""
    what = "its serving.properties, its code, its checkpoint, and what would be installed for it"
    unseen = f"  {shown_url(spec.url)}, which start would download: {what}"
    return *read_model_config(spec, server, None), unseen


def _checkpoint_elsewhere(config: ModelConfig) -> str:
    """An indented line: the checkpoint was not looked at, where the handler would download it; else ""."""
    from .handler_check import checkpoint_here

    checkpoint = checkpoint_here(config)
    return f"  the checkpoint {checkpoint}, which start would download" if isinstance(checkpoint, str) else ""


def _gguf(config: ModelConfig) -> str:
    """A description of the model's GGUF file, in indented lines; "": its weights are in another format."""
    from ..gguf import described_by
    from ..gguf.summary import summary
    from .handler_check import checkpoint_here

    checkpoint = checkpoint_here(config)
    file = described_by(checkpoint) if checkpoint is not None and not isinstance(checkpoint, str) else None
    return "" if file is None else "\n".join(f"  {name:15} {text}" for name, text in summary(file))


def _verdict(faults: int, warnings: int, *, loaded: bool, all_seen: bool) -> str:
    if faults:
        return f"refused, with {_counted(faults, 'fault')}"
    good = (
        "it loads"
        if loaded
        else "nothing is wrong with it"
        if all_seen
        else "nothing is wrong with the parts that are here"
    )
    return f"{good}, but there {'is' if warnings == 1 else 'are'} {_counted(warnings, 'warning')}" if warnings else good


def _counted(number: int, what: str) -> str:
    return f"1 {what}" if number == 1 else f"{number} {what}s"


def _memory(config: ModelConfig) -> str:
    """A worker's expected memory, in indented lines; "" where code of the user's own serves the model."""
    from ..config import TEXT_GENERATION, task_of
    from ..config.tasks import service_task
    from ..core.errors import ModelLoadError
    from ..engine.builtin.memory_need import memory_need
    from .handler_check import checkpoint_here

    checkpoint = checkpoint_here(config)
    if checkpoint is None:
        return ""
    if isinstance(checkpoint, str):
        return f"  unknown: {checkpoint} is not downloaded yet"
    try:
        if service_task(config, checkpoint) or task_of(config, checkpoint).name != TEXT_GENERATION:
            return "  unknown until the model is loaded (check --load)"
        need = memory_need(config, checkpoint)
    except ModelLoadError:  # the handler's checks report it
        return ""
    return "" if need is None else "\n".join(f"  {name:15} {text}" for name, text in _rows(need))


def _rows(need: MemoryNeed) -> list[tuple[str, str]]:
    where = " of the GPU" if need.on_gpu else ""
    rows = [("weights", f"about {_size(need.weights)}{where}")]
    if need.on_gpu:
        rows.append(("KV cache", "what option.gpu_memory_utilization leaves of the GPU"))
    elif need.cache is not None:
        rows.append(("KV cache", f"up to {_size(need.cache)}, {_size(need.cache_at_once)} of it at once"))
    else:
        rows.append(("KV cache", "unknown until the model is loaded (check --load)"))
    over = "; that is more than there is" if need.peak > need.free else ""
    return [
        *rows,
        ("a worker", f"about {_size(need.loaded)} before any request, and {_size(need.peak)} while it loads"),
        ("free now", f"{_size(need.free)}{over}"),
    ]


def _size(number: int) -> str:
    return f"{number / 2**30:,.1f} GiB" if number >= 10 * 2**30 else f"{number / 2**20:,.0f} MiB"
