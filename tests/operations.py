"""What torch is asked to do, seen from below: for what a test can't see in results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

#: Results whose size or value the host has to know.
_WAITS: Final = {"nonzero", "_local_scalar_dense", "masked_select", "equal"}


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within it, operations are noted.

    Attributes:
        names: in order.
        made_bytes: of new tensors.
        waits: operations for which the host would wait, if they ran on a GPU; what is fetched at last isn't seen.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []
        self.made_bytes = 0
        self.waits = 0

    def __torch_dispatch__(self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.__name__.partition(".")[0]
        self.names.append(name)
        by_booleans = name.startswith("index") and any(
            index is not None and index.dtype == torch.bool
            for index in (args[1] if isinstance(args[1], list | tuple) else ())
        )
        self.waits += name in _WAITS or by_booleans
        made = function(*args, **(kwargs or {}))
        places = {each.untyped_storage().data_ptr() for each in args if isinstance(each, Tensor)}
        for each in made if isinstance(made, tuple) else (made,):
            if isinstance(each, Tensor) and each.untyped_storage().data_ptr() not in places:
                self.made_bytes += each.nbytes
        return made
