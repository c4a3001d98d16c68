"""The front end: HTTP, admission, supervision, metrics. The only package that imports tornado."""
