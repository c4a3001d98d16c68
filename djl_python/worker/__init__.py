"""The worker process: one replica of one model.

One asyncio loop, and one thread that runs a synchronous handler's code. `service` speaks with the front end and is the
error boundary around handlers. `entry_point` finds the handler, `user_handler` wraps a user's function or class,
`thread` runs it. `answers` and `reply` send the result. `tracebacks` shows the user's frames; `freed_memory` gives
memory back after large requests.

The exit status says why the process ended:

    0  it was told to stop
    3  the model did not load: starting it again would end the same way
    4  a synchronous handler, or a clean-up before it, did not return when its call's time was up; nothing else can take
       its thread back
    5  the front end is gone
    6  the handler said that it can no longer answer (`Context.fail`)
"""

from __future__ import annotations

from typing import Final

EXIT_STOPPED: Final = 0
EXIT_LOAD_FAILED: Final = 3
EXIT_TIMEOUT: Final = 4
EXIT_ORPHANED: Final = 5
EXIT_HANDLER_FAILED: Final = 6
