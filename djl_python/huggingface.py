"""The module `compat.services.huggingface` itself, under the name that DJL has for it."""

import sys

from .compat.services import huggingface as _module
from .compat.services.huggingface import *  # noqa: F403 - for type checkers: what runs is the module

sys.modules[__name__] = _module
