"""Where models come from: local directories, archives, http(s), S3, the Hugging Face Hub and the package itself.

- `urls`: URLs of models, as they are read and as they are shown; `hub_ids`: names of models of the hub.
- `finding`: which source a URL has, and where a checkpoint is.
- `local`, `http_archives`, `s3`, `hub`: the sources; a class of each is in `finding.SOURCES`, imported at need.
- `cache`: the directory of what is downloaded or unpacked.
"""

from .cache import ARCHIVE_SUFFIXES, cache_root
from .finding import fetch_model, local_path, path_here
from .urls import LOGIN, scheme_of, shown_url

__all__ = [
    "ARCHIVE_SUFFIXES",
    "LOGIN",
    "cache_root",
    "fetch_model",
    "local_path",
    "path_here",
    "scheme_of",
    "shown_url",
]
