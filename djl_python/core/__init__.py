"""The data that flows through the system, and its errors. Runs in every process; no I/O, no torch.

`types` declares a parsed request (`GenerateRequest`, `SamplingParams`) and its results (`TokenEvent`, `Delta`,
`Finish`). `errors` has a class for each kind of failure, with its HTTP status. `registry` imports the object that a
table's name stands for. `logs` formats log lines; `cpu_limit` counts the processors that a container may use.
"""
