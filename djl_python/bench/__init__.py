"""`djl-serving bench`: measures any endpoint that streams tokens, ours or another server's. Runs in its own process.

Nothing is exported here: `cli` starts `command`, and the project's own benchmark (tests/bench) uses the modules. `load`
is N clients in a closed loop, over the HTTP client of `http`, with the requests of `dialects`; `cpu` measures the CPU
time of the server's processes, `report` makes tables; `traffic` records real requests, plays them again, and compares
servers.
"""
