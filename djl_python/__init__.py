"""A Python handler framework in DJL's style: the names that a `model.py` imports.

>>> from djl_python import Input, Output

A handler raises `PayloadError` or `ParameterError` for a faulty request; any other error counts as the handler's fault.
Importing this package loads neither torch nor tornado.
"""

from __future__ import annotations

from .compat.pair_list import PairList
from .compat.session_manager import Session, SessionManager
from .core.errors import ParameterError, PayloadError
from .inputs import Input
from .outputs import Output

__version__ = "0.1.0.dev0"

__all__ = ["Input", "Output", "PairList", "ParameterError", "PayloadError", "Session", "SessionManager", "__version__"]
