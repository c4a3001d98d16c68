"""What a model's code raises when it is called in a way that it was not written for. Engine process, at load."""

from __future__ import annotations

from typing import Final

#: To be caught around a trial: a model that raises one of these is not of the kind that was tried.
CALL_ERRORS: Final = (RuntimeError, TypeError, ValueError, AttributeError, LookupError, AssertionError)
