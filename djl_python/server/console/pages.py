"""The console's routes, and what answers them. Runs in the front end's event loop.

A client that may see /metrics may see the server's state. Settings, paths, processes and the log need the right to
manage models at the address; the page makes its changes through the management API.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from ...config import ServerConfig
from ...core import logs
from ...core.access.scopes import Scope
from ...dialects.shared.base import Answer, Bodies, Kind, Route
from ...dialects.shared.djl_errors import DjlError
from ...dialects.shared.openapi import TEXT
from ...formats.json_framing import JSON, encode_json
from ...ipc.protocol import Defaults
from ..http.access import Rights
from ..http.requests.request_head import RequestHead
from ..management.parameters import read_parameters
from ..models.registry import ModelRegistry
from .assets import asset
from .processes import Processes, ProcessMeter
from .recent_lines import LogRecord, RecentLines
from .state import AllSettings, State, settings_of, state_of

_HTML: Final = "text/html"
_FILES: Final[Bodies] = {"text/javascript": str, "text/css": str, "image/svg+xml": str, TEXT: str, _HTML: str}
_REFUSALS: Final[dict[int, Bodies]] = {status: {JSON: DjlError} for status in (400, 401, 403, 404)}


class After(msgspec.Struct, frozen=True):
    """GET /console/log: which records."""

    after: Annotated[int, Meta(ge=0, description="Those with a higher number; 0: all that are kept.")] = 0


class Records(msgspec.Struct, frozen=True):
    """Records of the log, oldest first. A new server begins with 1 again.

    Attributes:
        level: the least serious one that is logged: debug, info, warning, error or off.
    """

    level: str
    records: list[LogRecord]


CONSOLE_ROUTES: Final = (
    Route(
        *("GET", "/console", "console", Kind.PAGE),
        summary="The console, for browsers.",
        responses={200: {_HTML: str}},
        scope=Scope.PUBLIC,
    ),
    *(
        Route(
            *("GET", f"/console/{folder}{{file}}", f"console_{name}", Kind.PAGE),
            summary=f"A file of the console{of}.",
            responses={200: _FILES, 404: {JSON: DjlError}},
            scope=Scope.PUBLIC,
        )
        for folder, name, of in (("", "file", ""), ("vendor/", "library", "'s libraries"))
    ),
    Route(
        *("GET", "/console/state", "console_state", Kind.PAGE),
        summary="The server's models, for the console.",
        responses={200: {JSON: State}},
    ),
    Route(
        *("GET", "/console/processes", "console_processes", Kind.PAGE),
        summary="Processor time and memory of the server's processes.",
        responses={200: {JSON: Processes}},
        scope=Scope.METRICS,
    ),
    *(
        Route(
            *("GET", f"/console/defaults/{{model}}{version}", "console_defaults", Kind.PAGE),
            summary="What requests to a model have that say nothing of a field.",
            responses={200: {JSON: Defaults}, **_REFUSALS},
        )
        for version in ("", "/{version}")
    ),
    Route(
        *("GET", "/console/settings", "console_settings", Kind.PAGE),
        summary="Every setting, and where its value comes from.",
        responses={200: {JSON: AllSettings}, **_REFUSALS},
        scope=Scope.MANAGE,
    ),
    Route(
        *("GET", "/console/log", "console_log", Kind.PAGE),
        summary="The last records of the log.",
        query=After,
        responses={200: {JSON: Records}, **_REFUSALS},
        scope=Scope.MANAGE,
    ),
    Route(
        *("GET", "/docs", "docs", Kind.PAGE),
        summary="This document, for browsers.",
        responses={200: {_HTML: str}},
        scope=Scope.PUBLIC,
    ),
)

Page = Callable[[Mapping[str, str], RequestHead, Rights], Answer | Awaitable[Answer]]


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
        self._meter = ProcessMeter()
        self.pages: Mapping[str, Page] = {
            "console": lambda values, head, rights: _page("index.html", head),
            "docs": lambda values, head, rights: _page("docs.html", head),
            "console_file": lambda values, head, rights: asset(values["file"], head.headers),
            "console_library": lambda values, head, rights: asset(f"vendor/{values['file']}", head.headers),
            "console_state": lambda values, head, rights: _json(self._state(rights)),
            "console_processes": lambda values, head, rights: self._processes(),
            "console_defaults": lambda values, head, rights: _json(self._defaults(values, rights)),
            "console_settings": lambda values, head, rights: _json(self._settings()),
            "console_log": lambda values, head, rights: _json(self._log(head)),
        }

    def sent_elsewhere(self, head: RequestHead) -> Answer | None:
        """To the console, for a browser at the server's root, which tells programs whether models answer."""
        if not self._config.console or head.path != "/" or head.method not in ("GET", "HEAD"):
            return None
        types = (part.partition(";")[0].strip() for part in head.headers.get("accept", "").split(","))
        return Answer(303, b"", {"location": "console", "vary": "Accept"}) if _HTML in types else None

    def _state(self, rights: Rights) -> State:
        models = self._registry.models
        names = filter(rights.key.may_use, models.names)
        described = [model for name in names for model in self._registry.describe(name)]
        return state_of(self._config, described, rights, several=models.several)

    async def _processes(self) -> Answer:
        models = self._registry.models
        described = [model for name in models.names for model in self._registry.describe(name)]
        workers = {
            worker.pid: (model.spec.name, model.spec.version)
            for model in described
            for worker in (*model.workers, *model.successor)
            if worker.pid is not None
        }
        return _json(await self._meter.processes(workers))

    def _defaults(self, values: Mapping[str, str], rights: Rights) -> Defaults:
        name = values["model"]
        self._registry.models.select(name, may_use=rights.key.may_use)
        (model,) = self._registry.describe(name, values.get("version", ""))
        return model.info.defaults

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
