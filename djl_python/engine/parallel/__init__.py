"""Models that several devices share, by layers or within each layer: a process for each device, a rank.

The first rank is the engine process. It schedules, drafts and samples as if it were alone; `ranks` starts the others,
and sends them each step's chunks before it runs the step itself. `rank` is the entry of the others, which only compute.
"""
