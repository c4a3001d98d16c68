"""What flows through the system, and what can go wrong. Runs in every process; no I/O, no torch.

`types` has a request once it is parsed (`GenerateRequest`, `SamplingParams`) and its results (`TokenEvent`, `Delta`,
`Finish`); `errors` a class for each kind of failure, with its HTTP status; `registry` turns names of tables into
objects when they are chosen; `logs` is the format of a line; `cpu_limit` the processors that a container has.
"""
