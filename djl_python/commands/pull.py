"""`djl-serving pull`: downloads models to where a server looks for them, and shows how far that is.

Runs in the command's own process. Exit codes: 0 done; 1 a model can't be downloaded.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ..config.environment import cache_directory
from ..core.errors import ConfigError
from ..sources import pull


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    options = parser().parse_args(arguments)
    cache_dir = cache_directory()
    pulled: list[dict[str, str]] = []
    for name in options.model:
        print(f"pulling {name}", file=sys.stderr)
        try:
            path = pull(name, Path(cache_dir) if cache_dir else None, options.revision)
        except ConfigError as error:
            print(f"djl-serving pull: {error.message}", file=sys.stderr)
            return 1
        pulled.append({"model": name, "path": str(path)})
        if not options.json:
            print(path)
    if options.json:
        print(json.dumps(pulled))
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="djl-serving pull",
        description="Download models, so that a server that serves them later need not. Prints where each is; progress "
        "goes to stderr.",
    )
    made.add_argument(
        "model",
        nargs="+",
        metavar="MODEL",
        help="owner/model of the Hugging Face Hub, or a URL: hf://, s3://, http(s):// of an archive",
    )
    made.add_argument("--revision", default="", help="branch, tag or commit of a model of the hub")
    made.add_argument("--json", action="store_true", help="print JSON")
    return made
