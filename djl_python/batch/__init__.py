"""Requests in a file, answered into another file. Runs in the front end, and in the process of `djl-serving batch`.

Knows neither HTTP nor models: who runs a batch says how a request is answered (`runner.Send`).

- `lines`: what a line of the input may be; `scan` reads a whole file before anything is answered.
- `journal`: what has been answered so far, on disk, so that a batch goes on after a kill.
- `results`: the lines of the output and error files, and these files in the input's order.
- `turns`: lets an event loop run beside a thread that works on a long file.
- `runner`: so many requests at a time, until every line has its result.
"""
