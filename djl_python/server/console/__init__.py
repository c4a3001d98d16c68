"""The console at /console and the API reference at /docs: pages for browsers. Runs in the front end.

`pages` has the routes and answers them; `assets` reads `static/`, the pages' files, which a browser gets as they are;
`state` says how the server and its models are; `recent_lines` keeps the end of the log. What the console changes, it
changes through the management API, and its charts show what `/server/metrics` counts: nothing runs here, and nothing is
sampled, unless a browser asks.
"""
