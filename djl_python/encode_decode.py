"""The module `compat.encode_decode` itself, under the name that DJL has for it."""

import sys

from .compat import encode_decode as _module
from .compat.encode_decode import *  # noqa: F403 - for type checkers: what runs is the module

sys.modules[__name__] = _module
