"""Packages of engines that a user's file may import too, as LMI's images had them: which engine has one.

Runs in the front end and in the worker; imports no engine.
"""

from __future__ import annotations

from ..config.engines import ENGINES, EngineRow, row_of


def engine_with(module: str) -> EngineRow | None:
    """The engine whose environment has this module, of those that `djl-serving engines install` installs."""
    rows = filter(None, map(row_of, ENGINES))
    return next((row for row in rows if row.distribution is not None and module in row.requires), None)


def what_brings(module: str) -> str:
    """A clause that names the command or the requirement that brings a missing module; "" where no engine has it."""
    engine = engine_with(module)
    return "" if engine is None else f"; {engine.remedy}, or with a line {module!r} in requirements.txt"
