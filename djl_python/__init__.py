"""A Python handler framework in DJL's style: what a `model.py` imports.

>>> from djl_python import Input, Output

Importing this package loads neither torch nor tornado.
"""

from __future__ import annotations

from .inputs import Input
from .outputs import Output
from .pair_list import PairList

__version__ = "0.1.0.dev0"

__all__ = ["Input", "Output", "PairList", "__version__"]
