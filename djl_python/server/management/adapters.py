"""The routes of a model's adapters, and what answers them.

Runs in the front end's event loop. Sources: DJL's "Adapters Management API"; vLLM's "LoRA Adapters", "Dynamically
serving LoRA Adapters".
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from ...config import ServerConfig
from ...config.sources import scheme_of, shown_url
from ...core.access.scopes import Scope
from ...dialects.shared.base import Answer, Bodies, Kind, Route
from ...dialects.shared.djl_errors import DjlError
from ...dialects.shared.openapi import TEXT
from ...formats.json_framing import JSON
from ..http.answers import pretty_json
from ..http.requests.request_head import RequestHead
from ..models.adapters.adapter import Adapter
from ..models.registry import ModelRegistry
from ..models.served_model import ServedModel
from .parameters import given_parameters, read_parameters
from .partial import PartialRegistry
from .types import (
    AdapterPage,
    AdapterRegistration,
    AdapterUpdate,
    DescribedAdapter,
    LoadLora,
    Paging,
    Status,
    UnloadLora,
)

_MAX_PAGE: Final = 100
#: What SageMaker calls an adapter to its users; answers do too.
_ALIAS: Final = "x-amzn-sagemaker-adapter-alias"
_REFUSALS: Final[dict[int, Bodies]] = {
    status: {JSON: DjlError} for status in (400, 401, 403, 404, 405, 409, 415, 424, 500, 503, 507)
}
_DONE: Final[dict[int, Bodies]] = {200: {JSON: Status}, **_REFUSALS}
_SAID: Final[dict[int, Bodies]] = {200: {TEXT: str}, **_REFUSALS}

Page = Callable[[Mapping[str, str], RequestHead, bytes], Answer | Awaitable[Answer]]


def _routes(prefix: str) -> Sequence[Route]:
    single = f"{prefix}/{{adapter}}"
    return [
        Route(
            *("POST", prefix, "register_adapter", Kind.PAGE),
            summary="Register a LoRA adapter.",
            request=AdapterRegistration,
            example={"name": "my-adapter", "src": "adapters/my-adapter"},
            query=AdapterRegistration,
            responses=_DONE,
            scope=Scope.MANAGE,
        ),
        Route(
            *("GET", prefix, "list_adapters", Kind.PAGE),
            summary="The model's adapters, by name.",
            query=Paging,
            responses={200: {JSON: AdapterPage}, **_REFUSALS},
            scope=Scope.MANAGE,
        ),
        Route(
            *("GET", single, "describe_adapter", Kind.PAGE),
            summary="An adapter.",
            responses={200: {JSON: DescribedAdapter}, **_REFUSALS},
            scope=Scope.MANAGE,
        ),
        *(
            Route(
                *(method, path, "update_adapter", Kind.PAGE),
                summary="Read an adapter again, or another one in its place.",
                request=AdapterUpdate,
                example={},
                query=AdapterUpdate,
                responses=_DONE,
                scope=Scope.MANAGE,
            )
            for method, path in (("POST", f"{single}/update"), ("PUT", single))
        ),
        Route(
            *("DELETE", single, "unregister_adapter", Kind.PAGE),
            summary="Remove an adapter; its requests are answered first.",
            responses=_DONE,
            scope=Scope.MANAGE,
        ),
    ]


ROUTES: Final = (
    *_routes("/models/{model}/adapters"),
    *_routes("/adapters"),
    Route(
        *("POST", "/v1/load_lora_adapter", "load_lora_adapter", Kind.PAGE),
        summary="vLLM's way to register a LoRA adapter.",
        request=LoadLora,
        example={"lora_name": "my-adapter", "lora_path": "adapters/my-adapter"},
        responses=_SAID,
        scope=Scope.MANAGE,
    ),
    Route(
        *("POST", "/v1/unload_lora_adapter", "unload_lora_adapter", Kind.PAGE),
        summary="vLLM's way to remove a LoRA adapter.",
        request=UnloadLora,
        example={"lora_name": "my-adapter"},
        responses=_SAID,
        scope=Scope.MANAGE,
    ),
)


class AdapterManagement:
    """Answers the routes. Attribute `pages`: by operation. A path without a model means the only one that there is."""

    def __init__(self, config: ServerConfig, registry: ModelRegistry | PartialRegistry) -> None:
        self._store = config.model_store
        self._registry = registry
        self.pages: Mapping[str, Page] = {
            "register_adapter": self._register,
            "list_adapters": self._list,
            "describe_adapter": self._describe,
            "update_adapter": self._update,
            "unregister_adapter": self._unregister,
            "load_lora_adapter": self._load,
            "unload_lora_adapter": self._unload,
        }

    # ------------------------------------------------------------------------------------ DJL's

    async def _register(self, values: Mapping[str, str], head: RequestHead, body: bytes) -> Answer:
        wanted, options = read_parameters(AdapterRegistration, head, body, others=True), _options(head, body)
        await self._add(values.get("model", ""), self._adapter(wanted.name, wanted.src, options), replace=False)
        return _done(head, wanted.name, "registered")

    def _list(self, values: Mapping[str, str], head: RequestHead, body: bytes) -> Answer:
        paging = read_parameters(Paging, head, b"")
        adapters = self._model(values).adapters.wanted
        names = sorted(adapters)
        end = paging.next_page_token + min(paging.limit, _MAX_PAGE)
        token = {"next_page_token": str(end)} if end < len(names) else {}
        page = AdapterPage([_described(adapters[name]) for name in names[paging.next_page_token : end]], **token)
        return Answer(200, pretty_json(page))

    def _describe(self, values: Mapping[str, str], head: RequestHead, body: bytes) -> Answer:
        return Answer(200, pretty_json(_described(self._model(values).adapters.find(values["adapter"]))))

    async def _update(self, values: Mapping[str, str], head: RequestHead, body: bytes) -> Answer:
        name, wanted, options = (
            values["adapter"],
            read_parameters(AdapterUpdate, head, body, others=True),
            _options(head, body),
        )

        async def update(model: ServedModel) -> None:
            was = model.adapters.find(name)
            now = self._adapter(name, wanted.src or was.source, {**was.options, **options})
            await model.change_adapter(name, now)

        await self._registry.change_adapter(values.get("model", ""), update)
        return _done(head, name, "updated")

    async def _unregister(self, values: Mapping[str, str], head: RequestHead, body: bytes) -> Answer:
        await self._remove(values.get("model", ""), values["adapter"])
        return _done(head, values["adapter"], "unregistered")

    # ------------------------------------------------------------------------------------ vLLM's

    async def _load(self, values: Mapping[str, str], head: RequestHead, body: bytes) -> Answer:
        wanted = read_parameters(LoadLora, head, body, others=True)
        await self._add(
            wanted.model, self._adapter(wanted.lora_name, wanted.lora_path, {}), replace=wanted.load_inplace
        )
        return _message(f"Success: LoRA adapter '{wanted.lora_name}' added successfully.")

    async def _unload(self, values: Mapping[str, str], head: RequestHead, body: bytes) -> Answer:
        wanted = read_parameters(UnloadLora, head, body, others=True)
        await self._remove(wanted.model, wanted.lora_name)
        return _message(f"Success: LoRA adapter '{wanted.lora_name}' removed successfully.")

    # ------------------------------------------------------------------------------------ inside

    def _model(self, values: Mapping[str, str]) -> ServedModel:
        return self._registry.models.select(values.get("model", ""))

    def _adapter(self, name: str, source: str, options: dict[str, str]) -> Adapter:
        """A relative path may be one in the model store, as a model's may."""
        if self._store and not scheme_of(source) and not Path(source).exists() and Path(self._store, source).exists():
            source = str(Path(self._store, source))
        return Adapter(name, source, options)

    async def _add(self, model_name: str, adapter: Adapter, *, replace: bool) -> None:
        async def add(model: ServedModel) -> None:
            if not (replace and adapter.name in model.adapters.wanted):
                model.adapters.check_new(adapter.name)
            await model.change_adapter(adapter.name, adapter)

        await self._registry.change_adapter(model_name, add)

    async def _remove(self, model_name: str, name: str) -> None:
        async def remove(model: ServedModel) -> None:
            model.adapters.find(name)
            await model.change_adapter(name, None)

        await self._registry.change_adapter(model_name, remove)


def _options(head: RequestHead, body: bytes) -> dict[str, str]:
    """The parameters beside name and source: the model's code may know more of them than we do."""
    given = given_parameters(head, body)
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in given.items()
        if name not in ("name", "src")
    }


def _described(adapter: Adapter) -> DescribedAdapter:
    return DescribedAdapter(adapter.name, shown_url(adapter.source), adapter.preload, adapter.pin)


def _done(head: RequestHead, name: str, what: str) -> Answer:
    return Answer(200, pretty_json(Status(f"Adapter {head.headers.get(_ALIAS, name)} {what}")))


def _message(text: str) -> Answer:
    return Answer(200, text.encode(), {"content-type": TEXT})
