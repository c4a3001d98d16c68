"""The console's routes, and what answers them. Runs in the front end's event loop.

What the server has and does, anybody may see who may see /metrics. Settings, paths, processes and the log are for those
who manage models at the address, like the management API, through which the page makes its changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from ...config import ServerConfig
from ...core import logs
from ...dialects.shared.base import Answer, Bodies, Kind, Route
from ...dialects.shared.djl_errors import DjlError
from ...dialects.shared.openapi import TEXT
from ...formats.json_framing import JSON, encode_json
from ..http.access import Rights
from ..http.request_head import RequestHead
from ..management.parameters import read_parameters
from ..models.registry import ModelRegistry
from .assets import asset
from .recent_lines import RecentLines, Record
from .state import AllSettings, State, settings_of, state_of

_HTML: Final = "text/html"
_FILES: Final[Bodies] = {"text/javascript": str, "text/css": str, "image/svg+xml": str, TEXT: str, _HTML: str}
_REFUSALS: Final[dict[int, Bodies]] = {status: {JSON: DjlError} for status in (400, 403, 404)}


class After(msgspec.Struct, frozen=True):
    """GET /console/log: which records."""

    after: Annotated[int, Meta(ge=0, description="Those with a higher number; 0: all that are kept.")] = 0


class Records(msgspec.Struct, frozen=True):
    """Records of the log, oldest first. A new server begins with 1 again.

    Attributes:
        level: the least serious one that is logged: debug, info, warning, error or off.
    """

    level: str
    records: list[Record]


CONSOLE_ROUTES: Final = (
    Route(
        *("GET", "/console", "console", Kind.PAGE), summary="The console, for browsers.", responses={200: {_HTML: str}}
    ),
    *(
        Route(
            *("GET", f"/console/{folder}{{file}}", f"console_{name}", Kind.PAGE),
            summary=f"A file of the console{of}.",
            responses={200: _FILES, 404: {JSON: DjlError}},
        )
        for folder, name, of in (("", "file", ""), ("vendor/", "library", "'s libraries"))
    ),
    Route(
        *("GET", "/console/state", "console_state", Kind.PAGE),
        summary="The server's models, for the console.",
        responses={200: {JSON: State}},
    ),
    Route(
        *("GET", "/console/settings", "console_settings", Kind.PAGE),
        summary="Every setting, and where its value comes from.",
        responses={200: {JSON: AllSettings}, **_REFUSALS},
        manages=True,
    ),
    Route(
        *("GET", "/console/log", "console_log", Kind.PAGE),
        summary="The last records of the log.",
        query=After,
        responses={200: {JSON: Records}, **_REFUSALS},
        manages=True,
    ),
    Route(
        *("GET", "/docs", "docs", Kind.PAGE),
        summary="This document, for browsers.",
        responses={200: {_HTML: str}},
    ),
)

Page = Callable[[Mapping[str, str], RequestHead, Rights], Answer]


class Console:
    """Answers the routes.

    Attributes:
        pages: by operation.
        lines: the end of the log, which whoever runs the server fills.
    """

    def __init__(self, config: ServerConfig, registry: ModelRegistry) -> None:
        self._config = config
        self._registry = registry
        self.lines = RecentLines()
        self.pages: Mapping[str, Page] = {
            "console": lambda values, head, rights: _page("index.html", head),
            "docs": lambda values, head, rights: _page("docs.html", head),
            "console_file": lambda values, head, rights: asset(values["file"], head.headers),
            "console_library": lambda values, head, rights: asset(f"vendor/{values['file']}", head.headers),
            "console_state": lambda values, head, rights: _json(self._state(rights)),
            "console_settings": lambda values, head, rights: _json(self._settings()),
            "console_log": lambda values, head, rights: _json(self._log(head)),
        }

    def _state(self, rights: Rights) -> State:
        models = self._registry.models
        described = [model for name in models.names for model in self._registry.describe(name)]
        return state_of(self._config, described, rights, several=models.several)

    def _settings(self) -> AllSettings:
        return settings_of(self._config, [model.config for model in self._registry.models])

    def _log(self, head: RequestHead) -> Records:
        return Records(logs.level(), self.lines.after(read_parameters(After, head, b"").after))


def _page(name: str, head: RequestHead) -> Answer:
    """A page for browsers, whose addresses of files are relative to its own: one with a slash at its end is another."""
    if head.path.endswith("/"):
        return Answer(308, b"", {"location": f"../{head.path.rstrip('/').rpartition('/')[2]}"})
    return asset(name, head.headers)


def _json(value: object) -> Answer:
    return Answer(200, encode_json(value), {"content-type": JSON, "cache-control": "no-store"})
