"""A folder with `djl_python` and nothing else, for interpreters that don't have it.

Runs in the front end and in the worker. Our own site-packages would bring a foreign interpreter packages that were
built for another. In a checkout, and in an editable installation, `djl_python.handlers` lies elsewhere than in the
package: hence a folder of links to its parts.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import tempfile
from pathlib import Path
from typing import Final

PACKAGE: Final = __package__.partition(".")[0]
#: Subpackages that a checkout has elsewhere.
ELSEWHERE: Final = ("handlers", "serving_templates")


def package_path(cache: Path) -> Path:
    """The folder to put on an interpreter's path; made below `cache` where it is missing. Raises OSError."""
    parts = _parts()
    shown = "\n".join(f"{name} {path}" for name, path in sorted(parts.items()))
    made = cache / "packages" / hashlib.sha256(shown.encode()).hexdigest()[:16]
    if made.is_dir():
        return made
    made.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".partial-", dir=made.parent))
    try:
        (staging / PACKAGE).mkdir()
        for name, path in parts.items():
            (staging / PACKAGE / name).symlink_to(path)
        staging.chmod(0o755)
        try:
            staging.rename(made)
        except OSError:
            if not made.is_dir():  # else another process was first
                raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return made


def _parts() -> dict[str, Path]:
    """What the package consists of: name -> where it is."""
    root = Path(__file__).resolve().parents[1]
    parts = {path.name: path for path in root.iterdir() if path.name != "__pycache__"}
    for name in ELSEWHERE:
        spec = importlib.util.find_spec(f"{PACKAGE}.{name}")
        if spec is not None and spec.submodule_search_locations:
            parts[name] = Path(spec.submodule_search_locations[0])
    return parts
