"""The console's files: what a browser gets of them, and that nothing of them asks another server for anything."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from djl_python.core.errors import RouteError
from djl_python.dialects.shared.completion import DEFAULT_MAX_TOKENS
from djl_python.server.console.assets import STATIC, asset, content_security_policy

VENDOR = STATIC / "vendor"
DOCUMENT = STATIC.parents[2] / "docs" / "console.md"
OURS = [path for path in STATIC.iterdir() if path.is_file()]
#: The libraries, as they are on the npm registry: file -> package, its version, file there, SHA-256.
LIBRARIES = {
    "preact.mjs": ("preact", "11.2.0", "dist/preact.mjs", "bdcbd9ab"),
    "preact-hooks.mjs": ("preact", "11.2.0", "hooks/dist/hooks.mjs", "e862ab29"),
    "htm.mjs": ("htm", "3.1.1", "dist/htm.mjs", "ab33dd3f"),
    "marked.mjs": ("marked", "18.2.1", "lib/marked.esm.js", "5371fea8"),
    "uPlot.iife.min.js": ("uplot", "1.6.32", "dist/uPlot.iife.min.js", "19c8d4c6"),
    "uPlot.min.css": ("uplot", "1.6.32", "dist/uPlot.min.css", "df630c6a"),
    "swagger-ui-bundle.js": ("swagger-ui-dist", "5.35.0", "swagger-ui-bundle.js", "e6a89869"),
    "swagger-ui.css": ("swagger-ui-dist", "5.35.0", "swagger-ui.css", "5ed08757"),
}


def test_an_asset_is_kept_by_browsers_and_asked_for_again() -> None:
    first = asset("app.js", {})
    assert first.status == 200
    assert first.headers["content-type"] == "text/javascript; charset=utf-8"
    assert first.headers["cache-control"] == "no-cache"
    again = asset("app.js", {"if-none-match": f'"other", {first.headers["etag"]}'})
    assert (again.status, again.body, again.headers["etag"]) == (304, b"", first.headers["etag"])
    assert asset("app.js", {"if-none-match": '"other"'}).status == 200


@pytest.mark.parametrize("name", ["", "nothing.js", "../pages.py", "/etc/passwd", "vendor", "vendor/../app.js"])
def test_nothing_else_is_served(name: str) -> None:
    with pytest.raises(RouteError, match="the console has no file"):
        asset(name, {})


def test_the_policy_permits_no_code_in_pages_and_no_other_server() -> None:
    policy = asset("docs.html", {}).headers["content-security-policy"]
    assert "script-src 'self';" in policy and "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    for name in ("index.html", "docs.html", "app.js"):
        headers = asset(name, {}).headers
        assert not {"'unsafe-inline'", "'unsafe-eval'", "*"} & set(
            re.split(r"[ ;]+", headers["content-security-policy"])
        )
        assert "http" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_an_import_map_is_permitted_by_its_hash_alone() -> None:
    policy = content_security_policy(b'<script type="importmap">{}</script><script>evil()</script>')
    assert re.findall(r"'sha256-[^']+'", policy) == ["'sha256-RBNvo1WzZ4oRRq0W9+hknpT7T8If536DEMBg9hyq/4o='"]


def test_libraries_are_as_they_were_published_with_their_licences() -> None:
    """Upgrading one: `npm pack NAME@VERSION`, copy its files and its licence, change its rows."""
    code = {path.name for path in VENDOR.iterdir() if path.suffix != ".txt"}
    assert code == set(LIBRARIES)
    documented = DOCUMENT.read_text()
    for name, (package, version, _, digest) in LIBRARIES.items():
        assert f") {version}" in documented, package
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest().startswith(digest), name
        stem = {"uplot": "uPlot", "swagger-ui-dist": "swagger-ui"}.get(package, package)
        licence = (VENDOR / f"{stem}.LICENSE.txt").read_text()
        assert re.search(r"MIT license|Apache License", licence, re.IGNORECASE), name


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_our_files_name_no_other_server(path: Path) -> None:
    links = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w{2,}", path.read_text()))
    assert links <= {"http://www.w3.org"}  # the name of SVG


def test_lmi_gets_as_many_tokens_as_a_completion() -> None:
    assert f"export const MAX_TOKENS = {DEFAULT_MAX_TOKENS};" in (STATIC / "snippets.js").read_text()
