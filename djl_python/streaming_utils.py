"""The module `compat.services.streaming_utils` itself, under the name that DJL has for it."""

import sys

from .compat.services import streaming_utils as _module
from .compat.services.streaming_utils import *  # noqa: F403 - for type checkers: what runs is the module

sys.modules[__name__] = _module
