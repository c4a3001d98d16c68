"""The module `compat.async_utils` itself, under the name that DJL has for it."""

import sys

from .compat import async_utils as _module
from .compat.async_utils import *  # noqa: F403 - for type checkers: what runs is the module

sys.modules[__name__] = _module
