"""The module `compat.session_manager` itself, under the name that DJL has for it."""

import sys

from .compat import session_manager as _module
from .compat.session_manager import *  # noqa: F403 - for type checkers: what runs is the module

sys.modules[__name__] = _module
