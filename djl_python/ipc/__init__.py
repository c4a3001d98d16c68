"""Processes, and the messages between them. Runs in every process.

`protocol` declares every message; `framing` makes frames of them, each with a batch; `channel` sends and receives
frames over a connected socket in an asyncio loop; `processes` spawns a child with one end of a socket pair, and sets
the child up; `event_loop` makes the loop (uvloop's, where it is installed) and keeps garbage collection off its back.
"""
