"""Walks a model's modules while some are being replaced. Runs in the engine process, at load."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn


def child_modules(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """(parent, name, module) of every module in the model, also if modules are replaced during the iteration."""
    for parent in list(model.modules()):
        for name, module in list(parent.named_children()):
            yield parent, name, module
