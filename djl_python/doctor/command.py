"""`djl-serving doctor`: examines, prints. Runs in the command's own process.

Exit codes: 0 nothing is broken; 1 something is; 2 a mistake in the arguments.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import groupby
from typing import Final

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..config import ServerConfig, read_server_config
from ..core.errors import ConfigError
from .devices import torch_and_gpus
from .finding import Finding, Level
from .processor import building, kernels, processor, threads
from .resources import descriptors, disk, memory, ports
from .settings import settings
from .software import engines, extras, versions

#: Columns where there is no terminal.
_WIDTH_OF_FILES: Final = 200
_STYLES: Final = {Level.OK: "", Level.HINT: "yellow", Level.BROKEN: "bold red"}
_MARKS: Final = {Level.OK: " ", Level.HINT: "!", Level.BROKEN: "x"}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="djl-serving doctor",
        description="Say what this machine and this Python have for serving models: processor and kernels, torch and "
        "GPUs, memory, disk, ports, versions, engines, and the settings of the environment; what is broken, and what "
        "would be faster and how. Nothing is loaded, downloaded or installed.",
    )
    made.add_argument("--json", action="store_true", help="print the findings as a JSON object")
    return made


def main(arguments: Sequence[str]) -> int:
    """Run `djl-serving doctor ARGUMENTS`; returns the exit code."""
    options = parser().parse_args(arguments)
    findings = examined()
    broken = [finding for finding in findings if finding.level is Level.BROKEN]
    if options.json:
        print(msgspec.json.format(msgspec.json.encode({"findings": findings, "broken": len(broken)})).decode())
    else:
        _print(findings)
    return 1 if broken else 0


def examined() -> list[Finding]:
    """Everything that was found, section by section."""
    config, wrong = _server_config()
    return [
        *versions(),
        *extras(),
        *processor(),
        *kernels(),
        *building(),
        *threads(),
        *torch_and_gpus(),
        *engines(),
        *memory(),
        *disk(),
        *descriptors(),
        *ports(config),
        *settings(config),
        *wrong,
    ]


def _server_config() -> tuple[ServerConfig, list[Finding]]:
    """The server's configuration, with defaults for what is wrong in it."""
    try:
        config, faults = read_server_config(None, {})
    except ConfigError as exc:
        return ServerConfig(), [Finding("environment", "config.properties", exc.message, Level.BROKEN)]
    lines = faults.message.splitlines()
    return config, [Finding("environment", "wrong", line, Level.BROKEN) for line in lines]


def _print(findings: Sequence[Finding]) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH_OF_FILES
    for section, group in groupby(findings, lambda finding: finding.section):
        console.print(Text(section, "bold"))
        table = Table.grid(padding=(0, 2, 0, 0))
        for finding in group:
            style = _STYLES[finding.level]
            table.add_row(Text(f" {_MARKS[finding.level]}", style), finding.name, Text(finding.value, style))
        console.print(table)
    for level, title in ((Level.BROKEN, "broken"), (Level.HINT, "could be better")):
        shown = [finding for finding in findings if finding.level is level]
        if shown:
            console.print(Text(f"\n{title}", "bold"))
        for finding in shown:
            advice = f"\n     {finding.advice}" if finding.advice else ""
            console.print(Text(f" {_MARKS[level]} {finding.name}: {finding.value}{advice}"))
