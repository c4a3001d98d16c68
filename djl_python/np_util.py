"""The module `compat.np_util` itself, under the name that DJL has for it."""

import sys

from .compat import np_util as _module
from .compat.np_util import *  # noqa: F403 - for type checkers: what runs is the module

sys.modules[__name__] = _module
