"""The module `compat.request` itself, under the name that DJL has for it."""

import sys

from .compat import request as _module
from .compat.request import *  # noqa: F403 - for type checkers: what runs is the module

sys.modules[__name__] = _module
