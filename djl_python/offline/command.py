"""The subcommand `djl-serving batch`: arguments, one run, the output. Runs in the command's own process.

Exit codes: 0 every request was answered; 1 some have errors, or the batch could not be run to its end; 2 a mistake in
the arguments; 128 and a signal's number: stopped by it. The same command goes on where one was stopped, or killed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from ..batch.journal import Journal, JournalError, JournalHead
from ..batch.lines import InputFile, Rules, scan
from ..batch.outputs import write_outputs
from ..batch.runner import GivenUpError, Run, Send
from ..bench.arguments import add_headers, headers_of, json_object
from ..commands.models import add_settings, settings_given
from ..commands.parsing import parse
from ..config import find_models, load_server_config
from ..config.command_line import Given, overrides_of, with_settings
from ..core import logs
from ..core.help_text import HelpFormatter
from ..ipc import event_loop
from ..sources import load_model_config
from .endpoint import endpoint
from .progress import BatchProgress

_DESCRIPTION: Final = """\
Answer a file of requests: with models that are loaded for it, or with a running server.

A line of INPUT is a request in OpenAI's batch format ({"custom_id", "method": "POST", "url", "body"}), or a plain one:
a JSON string, {"prompt": ...}, {"messages": ...} or {"inputs": ...}, with parameters beside them.
OUTPUT has a line for each that was answered, in the input's order; those with errors are in another file.
"""
_EXAMPLES: Final = """\
examples:
  djl-serving batch -m /models/llama-3 input.jsonl output.jsonl
  djl-serving batch -m /models/llama-3 prompts.jsonl output.jsonl --body '{"max_tokens": 200}' --dtype bf16
  djl-serving batch -u http://127.0.0.1:8080 input.jsonl output.jsonl --concurrency 64

While it runs, results are in OUTPUT.unfinished. Stopped or killed, it goes on with the same command: no request is
lost, and none is in the output twice. OUTPUT appears when it is complete.
"""
#: Requests beside those that the workers have, so that none of them waits for one.
_AHEAD: Final = 8
_DEFAULT_CONCURRENCY: Final = 32
#: Faults of an input that are printed.
_SHOWN_FAULTS: Final = 10


class InputError(Exception):
    """The files can't be used as they are; the message says why, in lines."""


@dataclass(frozen=True)
class Files:
    """The files of a batch."""

    source: Path
    output: Path
    errors: Path
    journal: Path

    @classmethod
    def of(cls, options: argparse.Namespace) -> Files:
        """The files that the arguments say."""
        output: Path = options.output
        errors = options.errors or output.with_name(f"{output.stem}.errors{output.suffix}")
        return cls(options.input, output, errors, output.with_name(f"{output.name}.unfinished"))

    def check(self, *, overwrite: bool) -> None:
        """Refuse to replace what is not this batch's own, unless `overwrite`: then remove it.

        Raises:
            InputError: there are other results.
        """
        if len({path.absolute() for path in (self.source, self.output, self.errors)}) < 3:
            raise InputError("INPUT, OUTPUT and the error file are not three different files")
        if overwrite:
            for path in (self.journal, self.output, self.errors):
                path.unlink(missing_ok=True)
        elif not self.journal.exists():
            for path in (self.output, self.errors):
                if path.exists():
                    raise InputError(f"{path} is there already; --overwrite replaces it")


def main(arguments: Sequence[str]) -> int:
    """Run `djl-serving batch ARGUMENTS`; returns the exit code."""
    made = parser()
    options = parse(made, arguments)
    settings = settings_given(made, options, options.url or "")
    logs.configure("warning")
    try:
        files = Files.of(options)
        files.check(overwrite=options.overwrite)
        rules = Rules(plain=True, defaults=options.body)
        source = scan(files.source, rules)
        _check(source)
        return event_loop.run_stoppable(_run(options, settings, files, source))
    except (InputError, JournalError, GivenUpError, OSError) as error:
        print(f"djl-serving batch: {error}", file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="djl-serving batch",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
    )
    made.add_argument("input", type=Path, metavar="INPUT", help="JSON lines")
    made.add_argument("output", type=Path, metavar="OUTPUT", help="JSON lines, in OpenAI's batch format")
    answering = made.add_mutually_exclusive_group(required=True)
    answering.add_argument(
        *("-m", "--models"),
        action="append",
        metavar="MODEL",
        help="a model to load: a path, a URL, or name:version:engine:devices=URL; may be repeated",
    )
    answering.add_argument("-u", "--url", type=_url, metavar="URL", help="a running server instead: http://host:port")
    made.add_argument("-f", "--config-file", type=Path, metavar="FILE", help="a config.properties, with -m")
    made.add_argument("--errors", type=Path, metavar="FILE", help="the error file (default OUTPUT with .errors)")
    made.add_argument(
        "--body", type=json_object, default={}, metavar="JSON", help="fields for every body that lacks them"
    )
    made.add_argument("--overwrite", action="store_true", help="begin anew, and replace OUTPUT and what belongs to it")
    made.add_argument(
        "--concurrency", type=_positive, metavar="N", help="requests at a time (default: what -m takes; 32 with -u)"
    )
    add_settings(made)
    add_headers(made, "with -u; ")
    made.add_argument("--timeout", type=float, default=600.0, metavar="S", help="for one request, with -u")
    made.add_argument(
        "--patience",
        type=float,
        default=600.0,
        metavar="S",
        help="seconds without a request that is taken, until it ends; the same command goes on later (default 600)",
    )
    return made


def _url(text: str) -> str:
    """A server's URL; that of OpenAI's clients ends with /v1, which requests have themselves."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise argparse.ArgumentTypeError(f"{text!r}: expected http://host:port")
    return text.rstrip("/").removesuffix("/v1")


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a positive number")
    return int(text)


def _check(source: InputFile) -> None:
    """Refuse an input with faults, before anything is answered."""
    if not source.faults:
        return
    shown = [
        f"line {fault.line}: {fault.message}" if fault.line else fault.message
        for fault in source.faults[:_SHOWN_FAULTS]
    ]
    if source.fault_count > len(shown):
        shown.append(f"and {source.fault_count - len(shown)} more")
    raise InputError(f"{source.path}: " + "\n  ".join(shown))


async def _run(options: argparse.Namespace, settings: Sequence[Given], files: Files, source: InputFile) -> int:
    target = options.url or " ".join([*options.models, *(f"--set {text}" for text in options.set)])
    if options.body:
        target += f" --body {msgspec.json.encode(options.body).decode()}"
    journal = await asyncio.to_thread(Journal.open, files.journal, JournalHead(source.sha256, source.count, target))
    try:
        _print_how_to_resume(journal, target)
        if journal.done < source.count:
            await _answer(options, settings, source, journal)
        failed = await asyncio.to_thread(write_outputs, journal, files.output, files.errors, source)
        journal.remove()
    except BaseException:
        _abandon(journal)
        raise
    if failed:
        _note(f"{failed} of {source.count} requests have errors: {files.errors}")
    return 1 if failed else 0


def _abandon(journal: Journal) -> None:
    """Leave a batch that is to be gone on with, or nothing where it has not begun."""
    if not journal.done:
        journal.remove()
        return
    journal.close()
    _note(f"{journal.done} of {journal.head.count} requests have their result; the same command goes on from there")


def _print_how_to_resume(journal: Journal, target: str) -> None:
    if journal.dropped_bytes:
        _note(f"{journal.dropped_bytes} bytes that were not complete are cut off: those requests are answered anew")
    if journal.done:
        _note(f"{journal.done} of {journal.head.count} requests have their result already")
    if journal.done and journal.head.target != target:
        _note(f"warning: until now {journal.head.target} has answered, and from here on {target} does")


async def _answer(options: argparse.Namespace, settings: Sequence[Given], source: InputFile, journal: Journal) -> None:
    async with _answering(options, settings) as (send, concurrency):
        with BatchProgress(journal) as progress:
            run = Run(source, journal, send, concurrency, on_result=progress.update, patience_s=options.patience)
            await run.run()
        _note(f"{journal.done} requests have their result, at {progress.speed}")


@asynccontextmanager
async def _answering(options: argparse.Namespace, settings: Sequence[Given]) -> AsyncIterator[tuple[Send, int]]:
    """What answers a request, and how many it is to have at a time."""
    if options.url:
        concurrency = options.concurrency or _DEFAULT_CONCURRENCY
        async with endpoint(options.url, headers_of(options), concurrency, options.timeout) as send:
            yield send, concurrency
        return
    from ..server.offline import loaded_models  # not needed where a server answers

    config = load_server_config(options.config_file, overrides_of(settings))
    specs = with_settings(find_models(config, options.models), settings)
    configs = {spec: load_model_config(spec, config) for spec in specs}
    async with loaded_models(config, configs) as (calls, capacity):
        yield calls.send, options.concurrency or capacity + max(_AHEAD, capacity // 4)


def _note(text: str) -> None:
    print(f"djl-serving batch: {text}", file=sys.stderr)
