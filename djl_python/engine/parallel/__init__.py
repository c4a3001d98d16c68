"""Models that several devices share, each layer or groups of layers: a process for each device, a rank.

The first rank is the engine process. It schedules, drafts and samples as if it were alone; `ranks` starts the others,
and sends them what a runner needs of each step before it runs it itself. `rank` is the entry of the others, which only
compute.
"""
