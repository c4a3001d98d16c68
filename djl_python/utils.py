"""The module `compat.utils` itself, under the name that DJL has for it."""

import sys

from .compat import utils as _module
from .compat.utils import *  # noqa: F403 - for type checkers: what runs is the module

sys.modules[__name__] = _module
