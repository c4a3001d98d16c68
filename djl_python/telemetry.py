"""The module `compat.telemetry` itself, under the name that DJL has for it."""

import sys

from .compat import telemetry as _module
from .compat.telemetry import *  # noqa: F403 - for type checkers: what runs is the module

sys.modules[__name__] = _module
