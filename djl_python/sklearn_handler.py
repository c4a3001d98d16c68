"""The module `compat.services.sklearn_handler` itself, under the name that DJL has for it."""

import sys

from .compat.services import sklearn_handler as _module
from .compat.services.sklearn_handler import *  # noqa: F403 - for type checkers: what runs is the module

sys.modules[__name__] = _module
