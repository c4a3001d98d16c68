"""The module `compat.request_io` itself, under the name that DJL has for it."""

import sys

from .compat import request_io as _module
from .compat.request_io import *  # noqa: F403 - for type checkers: what runs is the module

sys.modules[__name__] = _module
