"""A request's hold on its model, from the first thing that is known of it until its pool has the call.

Runs in the front end's event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from ..models.served_model import ServedModel


class Hold(ExitStack):
    """To be closed when the request has been submitted, or is not going to be. Until then its model stays loaded; from
    then on for as long as the request says, if it says that.

    Attributes:
        model: gives it, as soon as its settings are known: before it is loaded.
    """

    def __init__(self) -> None:
        super().__init__()
        self.model: Callable[[], ServedModel | None] = lambda: None
