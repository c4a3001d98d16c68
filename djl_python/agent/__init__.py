"""An agent: starts one worker on a machine of its own, for a front end elsewhere, and ends with it.

One process for each remote worker, with one asyncio loop. `agent` is the conversation with the front end; `directories`
brings the model's files here; `ray_actor` runs an agent as an actor of Ray's, and `python -m djl_python.agent` without
Ray. The worker is spawned as on the front end's machine (`server.models.local_processes`), but the other end of its
socket is the front end itself, over TCP. It is killed when the agent loses its own connection to the front end.
"""
