"""Exceptions of a model's code when it is called in an unexpected way. Engine process, at load."""

from __future__ import annotations

from typing import Final

#: To be caught around a probe: a model that raises one of these is not of the kind that was tried.
CALL_ERRORS: Final = (RuntimeError, TypeError, ValueError, AttributeError, LookupError, AssertionError)
