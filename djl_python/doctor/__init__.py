"""The subcommand `doctor`: what this machine and this environment have for serving models, and what is wrong with them.

Runs in the command's own process. `software`, `processor`, `devices`, `resources` and `settings` each look at one side
and return findings (`finding`); `command` prints them.
"""
