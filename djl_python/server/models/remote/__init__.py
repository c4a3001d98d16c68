"""Workers on other machines.

Runs in the front end's event loop. `workers` is a placement whose agents (`djl_python.agent`) connect to a port of the
front end's; how an agent comes to a machine is a `Launcher`'s business. `ray_cluster` has the one of Ray, which speaks
with `agent.ray_driver`: the front end does not load Ray. `conversation` is the front end's side of what it says to an
agent; `listings` says which files travel, and reads them.
"""
