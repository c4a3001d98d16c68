"""The module `compat.pair_list` itself, under the name that DJL has for it."""

import sys

from .compat import pair_list as _module
from .compat.pair_list import *  # noqa: F403 - for type checkers: what runs is the module

sys.modules[__name__] = _module
