"""MindIE's TGI-like stream: /generate_stream with option.tgi_dialect=mindie. Front end and worker; all in `dialect`."""
