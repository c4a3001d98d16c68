"""MindIE's TGI-like stream: /generate_stream with option.tgi_dialect=mindie. `dialect` has all of it."""
