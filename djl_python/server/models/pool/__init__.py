"""The calls of one model: admitted or refused, queued, given to a worker, and ended.

Runs in the front end's event loop.

- `pool`: admits calls, passes on what workers answer, and ends each call once.
- `assigner`: gives calls to workers, at once or in their turn; batches get what interactive calls leave.
- `workers`: the pool's workers, and since when each is idle or crowded; `flights`: a call, and a worker's slots.
- `occupancy`: how many calls there are, for metrics and for those that wait until there are none.
- `call_queue`, `batch_queue`: the calls that wait; `start_rate`: how long a new one would.
"""
