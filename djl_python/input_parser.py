"""The module `compat.input_parser` itself, under the name that DJL has for it."""

import sys

from .compat import input_parser as _module
from .compat.input_parser import *  # noqa: F403 - for type checkers: what runs is the module

sys.modules[__name__] = _module
