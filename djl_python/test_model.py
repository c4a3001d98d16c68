"""The module `compat.test_model` itself, under the name that DJL has for it."""

import sys

from .compat import test_model as _module
from .compat.test_model import *  # noqa: F403 - for type checkers: what runs is the module

if __name__ == "__main__":
    _module.run()
else:
    sys.modules[__name__] = _module
