"""Real traffic, recorded, played again and compared. Runs in the process of `djl-serving bench`.

- `recording`: the file: requests with their times, without secrets.
- `proxy`: passes requests on to a server, and records them.
- `player`: plays a recording against servers, at its own pace or faster.
- `differences`: compares two answers to one request.
- `command`: the options --record, --replay and --compare.
"""
