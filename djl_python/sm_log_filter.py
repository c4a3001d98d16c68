"""The module `compat.sm_log_filter` itself, under the name that DJL has for it."""

import sys

from .compat import sm_log_filter as _module
from .compat.sm_log_filter import *  # noqa: F403 - for type checkers: what runs is the module

sys.modules[__name__] = _module
