"""The module `compat.services.xgboost_handler` itself, under the name that DJL has for it."""

import sys

from .compat.services import xgboost_handler as _module
from .compat.services.xgboost_handler import *  # noqa: F403 - for type checkers: what runs is the module

sys.modules[__name__] = _module
