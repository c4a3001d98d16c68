"""Requests in a file, answered into another file. Runs in the front end, and in the process of `djl-serving batch`.

Knows neither HTTP nor models: the caller passes the function that answers a request (`runner.Send`).

- `lines`: reads the lines of the input; `scan` reads a whole file before anything is answered.
- `journal`: the results so far, on disk, so that a batch goes on after a kill.
- `results`: the lines of the output and error files, and these files in the input's order.
- `turns`: lets an event loop run while a thread works on a long file.
- `runner`: answers several requests at a time, until every line has its result.
"""
