"""A Python handler framework in DJL's style: what a `model.py` imports.

>>> from djl_python import Input, Output

A handler raises `PayloadError` or `ParameterError` for what is wrong with a request; anything else is its own fault.
Importing this package loads neither torch nor tornado.
"""

from __future__ import annotations

from .core.errors import ParameterError, PayloadError
from .inputs import Input
from .outputs import Output
from .pair_list import PairList

__version__ = "0.1.0.dev0"

__all__ = ["Input", "Output", "PairList", "ParameterError", "PayloadError", "__version__"]
