"""The routes of the management API, and what answers them.

Runs in the front end's event loop. Errors have the shape of the front end's own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

import msgspec

from ...config import ModelSpec, ServerConfig, registered_spec
from ...core import logs
from ...core.access.api_key import ApiKey
from ...core.access.scopes import Scope
from ...core.errors import (
    ConfigError,
    ModelConflictError,
    ModelNotFoundError,
    ParameterError,
    PayloadError,
    ServingError,
    SourceError,
    UnavailableError,
)
from ...dialects.shared.base import Answer, Bodies, Kind, Route
from ...dialects.shared.djl_errors import DjlError
from ...dialects.shared.openapi import TEXT
from ...formats.json_framing import JSON
from ...ipc import protocol
from ..http.answers import pretty_json
from ..http.requests.request_head import RequestHead
from ..metrics.metrics import CONTENT_TYPE, Metrics
from ..models.description import ModelDescription
from ..models.health import Health
from ..models.registry import ModelRegistry
from . import adapters
from .descriptions import described, listed
from .parameters import read_parameters
from .partial import PartialRegistry
from .types import (
    SETTINGS,
    DescribedWorkflow,
    ListedWorkflow,
    LogLevel,
    ModelPage,
    Paging,
    Registration,
    Scaling,
    Selection,
    Status,
    WorkflowPage,
)

log = logging.getLogger(__name__)

_MAX_PAGE: Final = 100
_REFUSALS: Final[dict[int, Bodies]] = {
    status: {JSON: DjlError} for status in (400, 401, 403, 404, 405, 409, 415, 500, 503, 507)
}
_DONE: Final[dict[int, Bodies]] = {200: {JSON: Status}, **_REFUSALS}


def _routes() -> Sequence[Route]:
    """DJL's models, and its workflows, which are models here."""
    routes: list[Route] = []
    for prefix, noun, page in (("/models", "model", ModelPage), ("/workflows", "workflow", WorkflowPage)):
        paths = (f"{prefix}/{{model}}", f"{prefix}/{{model}}/{{version}}")
        routes += [
            Route(
                *("POST", prefix, f"register_{noun}", Kind.PAGE),
                summary=f"Register a {noun}, or replace it.",
                request=Registration,
                example={"url": "hf://HuggingFaceTB/SmolLM2-135M-Instruct"},
                query=Registration,
                responses={**_DONE, 202: {JSON: Status}},
                scope=Scope.MANAGE,
            ),
            Route(
                *("GET", prefix, f"list_{noun}s", Kind.PAGE),
                summary=f"The {noun}s, by name.",
                query=Paging,
                responses={200: {JSON: page}, **_REFUSALS},
                scope=Scope.MANAGE,
            ),
            *(
                Route(
                    *("GET", path, "describe", Kind.PAGE),
                    summary=f"A {noun}'s settings, state and workers.",
                    query=Selection,
                    responses={200: {JSON: list[DescribedWorkflow]}, **_REFUSALS},
                    scope=Scope.MANAGE,
                )
                for path in paths
            ),
            *(
                Route(
                    *("PUT", path, "scale", Kind.PAGE),
                    summary=f"Change how many workers a {noun} has.",
                    request=Scaling,
                    example={"min_worker": 1},
                    query=Scaling,
                    responses={**_DONE, 202: {JSON: Status}},
                    scope=Scope.MANAGE,
                )
                for path in paths
            ),
            Route(
                *("POST", f"{prefix}/{{model}}/unload", "unload_model", Kind.PAGE),
                summary=f"End a {noun}'s workers, once their requests are answered; its next request starts others.",
                query=Selection,
                responses=_DONE,
                scope=Scope.MANAGE,
            ),
            *(
                Route(
                    *("DELETE", path, "unregister", Kind.PAGE),
                    summary=f"Remove a {noun}; its requests are answered first.",
                    query=Selection,
                    responses=_DONE,
                    scope=Scope.MANAGE,
                )
                for path in paths
            ),
        ]
    return routes


ROUTES: Final = (
    *_routes(),
    *adapters.ROUTES,
    Route(
        *("POST", "/server/logging", "logging", Kind.PAGE),
        summary="Change the log level.",
        request=LogLevel,
        example={"level": "INFO"},
        query=LogLevel,
        responses=_DONE,
        scope=Scope.MANAGE,
    ),
    Route(
        *("GET", "/server/metrics", "server_metrics", Kind.PAGE),
        summary="The metrics of /metrics, or those that name[] lists.",
        responses={200: {TEXT: str}},
        scope=Scope.METRICS,
    ),
)

Page = Callable[[Mapping[str, str], RequestHead, bytes], Answer | Awaitable[Answer]]


class Management:
    """Answers the routes. Attribute `pages`: by operation."""

    def __init__(self, config: ServerConfig, registry: ModelRegistry | PartialRegistry, metrics: Metrics) -> None:
        self._config = config
        self._registry = registry
        self._metrics = metrics
        self._later: set[asyncio.Task[None]] = set()
        self.pages: Mapping[str, Page] = {
            "register_model": lambda values, head, body: self._register("Model", head, body),
            "register_workflow": lambda values, head, body: self._register("Workflow", head, body),
            "list_models": self._list_models,
            "list_workflows": self._list_workflows,
            "describe": self._describe,
            "scale": self._scale,
            "unload_model": self._unload,
            "unregister": self._unregister,
            "logging": self._logging,
            "server_metrics": self._server_metrics,
            **adapters.AdapterManagement(config, registry).pages,
        }

    def of(self, key: ApiKey) -> Management:
        """Management by the holder of this key."""
        if not key.models or isinstance(self._registry, PartialRegistry):
            return self
        partial = Management(self._config, PartialRegistry(self._registry, key), self._metrics)
        partial._later = self._later
        return partial

    # ------------------------------------------------------------------------------------ what is there

    def _list_models(self, values: Mapping[str, str], head: RequestHead, body: bytes) -> Answer:
        models, token = self._page(head)
        return _json(ModelPage([listed(model) for model in models], **token))

    def _list_workflows(self, values: Mapping[str, str], head: RequestHead, body: bytes) -> Answer:
        models, token = self._page(head)
        entries = [listed(model) for model in models]
        return _json(
            WorkflowPage([ListedWorkflow(entry.model_name, entry.version) for entry in entries], entries, **token)
        )

    def _page(self, head: RequestHead) -> tuple[Sequence[ModelDescription], dict[str, str]]:
        """A page of the list, and the token for the next one where there is one."""
        paging = read_parameters(Paging, head, b"")
        names = sorted(self._registry.models.names)
        models = [model for name in names for model in self._registry.describe(name)]
        end = paging.next_page_token + min(paging.limit, _MAX_PAGE)
        token = {"next_page_token": str(end)} if end < len(models) else {}
        return models[paging.next_page_token : end], token

    async def _describe(self, values: Mapping[str, str], head: RequestHead, body: bytes) -> Answer:
        version = _version(values, read_parameters(Selection, head, b""))
        await self._registry.residence.measure()
        return _json([described(model) for model in self._registry.describe(values["model"], version)])

    # ------------------------------------------------------------------------------------ what is changed

    def _register(self, noun: str, head: RequestHead, body: bytes) -> Answer | Awaitable[Answer]:
        wanted = read_parameters(Registration, head, body)
        spec = self._spec(wanted)
        known = any(registered.spec.version == spec.version for registered in self._versions(spec.name))
        if known and not wanted.reload:
            version = f" version {spec.version}" if spec.version else ""
            raise ModelConflictError(
                f"model {spec.name!r}{version} is registered already; reload=true replaces it when the new one answers"
            )
        if known:
            work = self._reload(spec, keep_workers=wanted.min_worker is None)
        else:
            # As in DJL, a model that does not load is unregistered, unless the request does not wait.
            work = _registered(self._registry.register(spec, stays=not wanted.synchronous))
        if wanted.synchronous:
            return _when(work, f'{noun} "{spec.name}" registered.')
        return self._begin(work, f'{noun} "{spec.name}" registration scheduled.')

    def _versions(self, name: str) -> Sequence[ModelDescription]:
        return self._registry.describe(name) if self._registry.models.versions(name) else ()

    def _spec(self, wanted: Registration) -> ModelSpec:
        settings = {key: getattr(wanted, name) for name, keys in SETTINGS.items() for key in keys}
        parameters = {key: str(value) for key, value in settings.items() if value is not None}
        _check_workers(wanted.min_worker, wanted.max_worker)
        if not wanted.url:
            return msgspec.structs.replace(
                self._registered_spec(wanted),
                engine=wanted.engine,
                devices=wanted.device or "",
                parameters=tuple(parameters.items()),
            )
        try:
            return registered_spec(
                wanted.url,
                self._config.model_store,
                name=wanted.model_name,
                version=wanted.model_version,
                engine=wanted.engine,
                devices=wanted.device or "",
                parameters=parameters,
            )
        except ConfigError as exc:
            raise ParameterError(exc.message, "model_name") from exc

    def _registered_spec(self, wanted: Registration) -> ModelSpec:
        """The spec with which a model was registered, to load it again from the same place."""
        if not wanted.reload:
            raise PayloadError("url: required, expected a non-empty string", "url")
        if not wanted.model_name:
            raise PayloadError("model_name: required, as there is no url", "model_name")
        (registered,) = self._registry.describe(wanted.model_name, wanted.model_version)
        return registered.spec

    async def _reload(self, spec: ModelSpec, *, keep_workers: bool) -> None:
        """Load a model again. Settings of its registration hold unless this request sets them."""
        (was,) = (version.spec for version in self._versions(spec.name) if version.spec.version == spec.version)
        merged = msgspec.structs.replace(
            spec,
            engine=spec.engine or was.engine,
            devices=spec.devices or was.devices,
            parameters=tuple({**dict(was.parameters), **dict(spec.parameters)}.items()),
            settings=was.settings,
        )
        await _registered(self._registry.reload(spec.name, spec.version, merged, keep_workers=keep_workers))

    def _scale(self, values: Mapping[str, str], head: RequestHead, body: bytes) -> Answer | Awaitable[Answer]:
        wanted = read_parameters(Scaling, head, body)
        _check_workers(wanted.min_worker, wanted.max_worker)
        models = self._registry.describe(values["model"], _version(values, wanted))
        for model in models:
            if model.health in (Health.PENDING, Health.FAILED):
                raise UnavailableError(f"model {model.status.config.label!r} is not ready: {model.health}")
            devices = model.status.config.devices
            if wanted.device not in ("", devices):
                raise ParameterError(
                    f'device: expected none, or "{devices}": all of the model\'s devices are scaled, got '
                    f'"{wanted.device}"',
                    "device",
                )
        most = wanted.min_worker if wanted.max_worker is None else wanted.max_worker
        scaled = [
            self._registry.scale(model.spec.name, model.spec.version, min_workers=wanted.min_worker, max_workers=most)
            for model in models
        ]
        if not wanted.synchronous:
            return self._begin(_all(scaled), "Worker updated")
        done = (
            f'Workflow "{model.spec.name}" worker scaled. New Worker configuration min workers:{wanted.min_worker} '
            f"max workers:{most}"
            for model in models
        )
        return _when(_all(scaled), "\n".join(done))

    async def _unload(self, values: Mapping[str, str], head: RequestHead, body: bytes) -> Answer:
        version = _version(values, read_parameters(Selection, head, b""))
        models = self._registry.describe(values["model"], version)
        await _all([self._registry.release((model.spec.name, model.spec.version)) for model in models])
        return _json(Status(f'Model "{values["model"]}" unloaded'))

    def _unregister(self, values: Mapping[str, str], head: RequestHead, body: bytes) -> Awaitable[Answer]:
        version = _version(values, read_parameters(Selection, head, b""))
        ending = self._registry.unregister(values["model"], version)
        return _when(_all([ending]), f'Workflow "{values["model"]}" unregistered')

    def _logging(self, values: Mapping[str, str], head: RequestHead, body: bytes) -> Answer:
        level = read_parameters(LogLevel, head, body).level
        logs.set_level(level)
        for model in self._registry.running:
            for worker in model.workers:
                worker.send(protocol.LogLevel(level))
        return _json(Status("OK"))

    def _server_metrics(self, values: Mapping[str, str], head: RequestHead, body: bytes) -> Answer:
        names = [value for name, value in head.query if name in ("name[]", "name")]
        return Answer(200, self._metrics.render(names), {"content-type": CONTENT_TYPE})

    def _begin(self, work: Coroutine[Any, Any, None], message: str) -> Answer:
        """Answer at once; `describe` shows how far it is."""
        task = asyncio.create_task(_quietly(work))
        self._later.add(task)
        task.add_done_callback(self._later.discard)
        return _json(Status(message), 202)


def _version(values: Mapping[str, str], wanted: Selection) -> str | None:
    """The selected version: "" is the one without a version; None: all of them."""
    version = values.get("version")
    if not wanted.unversioned:
        return version
    if version is not None:
        raise ParameterError("unversioned: expected false or none, as the path has a version", "unversioned")
    return ""


def _check_workers(least: int | None, most: int | None) -> None:
    if least is not None and most is not None and most < least:
        raise ParameterError(f"max_worker: expected at least min_worker ({least}), got {most}", "max_worker")


def _refused(exc: ConfigError) -> ServingError:
    """The answer to a model that can't be read: 404 where there is none, else 400, as the URL was the client's."""
    if isinstance(exc, SourceError):
        return ModelNotFoundError(f"url: {exc.message}")
    return ParameterError(exc.message, "url")


async def _registered(registering: asyncio.Task[Any]) -> None:
    try:
        await registering
    except ConfigError as exc:
        raise _refused(exc) from exc


async def _when(work: Coroutine[Any, Any, None], message: str) -> Answer:
    await work
    return _json(Status(message))


async def _quietly(work: Coroutine[Any, Any, None]) -> None:
    """Work that nobody waits for; descriptions and the log show why it failed."""
    try:
        await work
    except ServingError as exc:
        log.warning("%s", exc.message)


async def _all(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Wait for all tasks; raises the first one's error."""
    await asyncio.wait(tasks)
    for task in tasks:
        task.result()


def _json(value: object, status: int = 200) -> Answer:
    return Answer(status, pretty_json(value))
