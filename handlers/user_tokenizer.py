"""The tokenizer that the user's formatters are given: transformers' own, as LMI documents it.

Runs in the worker, in the formatter's thread. The handler itself needs none of it, and importing transformers takes
seconds and memory: so it is loaded with the model where the user's module names a tokenizer, else when it is
first used.
"""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)


class UserTokenizer:
    """transformers' AutoTokenizer of a checkpoint: its attributes, calls and length.

    Args:
        path: the checkpoint's directory.

    Raises (when loaded or first used):
        Exception: whatever transformers raises where it can't load the tokenizer.
    """

    def __init__(self, path: Path, *, trust_remote_code: bool) -> None:
        self._path = path
        self._trust_remote_code = trust_remote_code

    def load(self) -> None:
        """Load it now, unless it is loaded: that takes seconds."""
        _ = self._loaded

    @functools.cached_property
    def _loaded(self) -> Any:
        log.info("%s: transformers loads the tokenizer, for the model's formatters", self._path)
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(str(self._path), trust_remote_code=self._trust_remote_code)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copy and pickle ask for these, which must not load anything
            raise AttributeError(name)
        return getattr(self._loaded, name)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._loaded(*args, **options)

    def __len__(self) -> int:
        return len(self._loaded)
