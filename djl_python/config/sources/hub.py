"""Models of the Hugging Face Hub, with its client.

Runs in the front end and in workers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ...core.errors import ConfigError, SourceError
from .cache import one_line

#: Files of a hub repository that a checkpoint needs. Second copies of the weights are not downloaded.
_HUB_FILES: Final = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken", "*.py"]
_HUB_DUPLICATES: Final = ["original/*", "consolidated*.safetensors", "onnx/*"]


class HubSource:
    """A repository of the Hugging Face Hub, in the hub client's own cache."""

    def __init__(self, cache_dir: Path | None = None) -> None:
        self._cache_dir = cache_dir

    def fetch(self, uri: str, revision: str = "") -> Path:
        from huggingface_hub import errors, snapshot_download

        repo = uri.removeprefix("hf://").strip("/")

        def download(patterns: list[str]) -> Path:
            found = snapshot_download(
                repo, revision=revision or None, allow_patterns=patterns, ignore_patterns=_HUB_DUPLICATES
            )
            return Path(found)

        try:
            path = download(_HUB_FILES)
            if not any(path.glob("*.safetensors")):
                path = download([*_HUB_FILES, "*.bin"])
        except errors.HFValidationError:
            raise ConfigError(f"option.model_id={repo}: neither a local directory nor a hub id (owner/name)") from None
        except errors.GatedRepoError as exc:
            raise ConfigError(f"hub model {repo} is gated: accept its terms on its page, and set HF_TOKEN") from exc
        except errors.RepositoryNotFoundError as exc:
            raise SourceError(f"hub model {repo} does not exist, or is private and HF_TOKEN gives no access") from exc
        except errors.RevisionNotFoundError as exc:
            raise SourceError(f"hub model {repo} has no revision {revision!r}") from exc
        except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as exc:
            at = f" at revision {revision}" if revision else ""
            raise ConfigError(f"hub model {repo}{at} is not in the local cache, and the hub can't be reached") from exc
        except (errors.HTTPError, OSError) as exc:  # type: ignore[attr-defined]  # of the hub client's HTTP library
            raise ConfigError(f"hub model {repo} can't be downloaded: {one_line(exc)}") from exc
        return path
