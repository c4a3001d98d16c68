"""The module `compat.service_loader` itself, under the name that DJL has for it."""

import sys

from .compat import service_loader as _module
from .compat.service_loader import *  # noqa: F403 - for type checkers: what runs is the module

sys.modules[__name__] = _module
