"""The module `compat.output_formatter` itself, under the name that DJL has for it."""

import sys

from .compat import output_formatter as _module
from .compat.output_formatter import *  # noqa: F403 - for type checkers: what runs is the module

sys.modules[__name__] = _module
