"""The console's files, with the headers that browsers need. Runs in the front end's event loop.

They come from the package, in `static/`, and nothing of them changes while the server runs. A browser keeps them, and
asks each time whether they are still the same: an upgraded server has other ones.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ...core.errors import RouteError
from ...dialects.shared.base import Answer

STATIC: Final = Path(__file__).parent / "static"

_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
#: The restrictions of every page: it loads nothing from elsewhere, is not framed, and sends no forms.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'{scripts}; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_IMPORT_MAP: Final = re.compile(rb'<script type="importmap">(.*?)</script>', re.DOTALL)


def asset(name: str, headers: Mapping[str, str]) -> Answer:
    """The file of this name below `static/`; 304 where the request's headers say that the browser has it.

    Raises:
        RouteError: there is none.
    """
    path = _files().get(name)
    if path is None:
        raise RouteError(f"the console has no file {name!r}")
    body, kept = _read(path)
    if kept["etag"] in headers.get("if-none-match", ""):
        return Answer(304, b"", kept)
    return Answer(200, body, kept)


@functools.cache
def _files() -> Mapping[str, Path]:
    """Every file by its name below `static/`: nothing else can be asked for."""
    paths = (path for path in STATIC.rglob("*") if path.suffix in _TYPES)
    return {path.relative_to(STATIC).as_posix(): path for path in paths}


@functools.cache
def _read(path: Path) -> tuple[bytes, dict[str, str]]:
    """A file and the headers of its answer."""
    body = path.read_bytes()
    headers = {
        "content-type": _TYPES[path.suffix],
        "cache-control": "no-cache",
        "etag": f'"{hashlib.sha256(body).hexdigest()[:32]}"',
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "content-security-policy": content_security_policy(body),
    }
    return body, headers


def content_security_policy(page: bytes) -> str:
    """The policy of a page: of its own text, the import map alone counts as a script, by its hash."""
    maps = (base64.b64encode(hashlib.sha256(script).digest()).decode() for script in _IMPORT_MAP.findall(page))
    return _POLICY.format(scripts="".join(f" 'sha256-{digest}'" for digest in maps))
