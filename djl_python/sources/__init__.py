"""Gets models to where they are served: local directories, archives, http(s), S3, the Hugging Face Hub, the package.

Runs in threads of the front end and of workers. URLs are read by `config.sources`, which fetches nothing.

- `finding`: which source a URL has, and where a checkpoint is.
- `local`, `http_archives`, `s3`, `hub`, `ollama`, `packages`: the sources; a class of each is in `finding.SOURCES`,
  imported at need.
- `gguf_files`: GGUF files, described as checkpoints.
- `progress`: how far a download is; `hub_parts`: of the hub's large files.
- `cards`: what a model's files say of it.
- `downloads`: what is downloaded already.
- `cache`: the directory of what is downloaded or unpacked.
- `model_config`: a model's configuration, once the model is here.
"""

from .finding import downloaded_path, fetch_model, local_path, path_here, pull, stays_here
from .model_config import load_model_config

__all__ = ["downloaded_path", "fetch_model", "load_model_config", "local_path", "path_here", "pull", "stays_here"]
