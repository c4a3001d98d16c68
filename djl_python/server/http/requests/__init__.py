"""A request as it arrives. Runs in the front end's event loop.

- `incoming`: whose it is, which route it is for, and whether it may have that.
- `request_head`: method, path, query, headers; `bodies`: the body; `content_coding`: decodes a compressed one.
"""
