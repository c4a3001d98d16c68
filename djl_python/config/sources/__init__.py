"""URLs of models, as they are read and shown, without fetching anything; `djl_python.sources` does that.

- `urls`: URLs of models; `hub_ids`: names of models of the hub; `model_urls`: those that names of requests make.
- `named`: models that have a name of their own.
- `places`: where downloads are kept.
"""

from .places import ARCHIVE_SUFFIXES, cache_root
from .urls import LOGIN, scheme_of, shown_url

__all__ = ["ARCHIVE_SUFFIXES", "LOGIN", "cache_root", "scheme_of", "shown_url"]
