"""`djl-serving batch`: a file's requests answered into another file, by models in this process or by a server.

Nothing is exported: `cli` starts `command`. `endpoint` sends requests to a server, `progress` shows how far it is; what
a batch is, and how it goes on after a kill, is `djl_python.batch`'s.
"""
