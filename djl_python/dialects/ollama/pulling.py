"""/api/pull: downloads a model, and tells how far it is. Runs in the front end.

Clients that may manage models may pull. Ollama's own library is not available; this server's sources are.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ...config.sources import scheme_of
from ...config.sources.hub_ids import is_hub_id
from ...config.sources.named import NAMED_MODELS, named_url
from ...core.access.scopes import Scope
from ...core.errors import ParameterError
from ...core.model_files.download_part import DownloadPart
from ...core.names import choices
from ...formats.json_framing import JSON, encode_json, encode_jsonlines
from ..shared.base import Answer, Kind, Route, StreamedAnswer
from ..shared.request_body import object_of
from ..shared.typed_body import read_body
from ..shared.views import ServerView
from .answer import NDJSON
from .errors import OllamaError
from .names import bare_name

PULL: Final = "ollama_pull"
#: The beginnings of names of the hub's models, as Ollama has them.
_HUB_PREFIXES: Final = ("hf.co/", "huggingface.co/")
#: Hexadecimal digits of a digest in a status.
_SHOWN_DIGITS: Final = 12
_EXPECTED: Final = "hf.co/OWNER/NAME:Q4_K_M, OWNER/NAME of the Hugging Face Hub, or a URL (hf://, s3://, https://)"


class OllamaPullRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which model to download; `name` is the field's older name."""

    model: str = ""
    name: str = ""
    stream: Annotated[bool, Meta(description="Send a line whenever more has come; true if absent.")] | None = None
    insecure: Annotated[Any, Meta(description="Without effect.")] = None


class OllamaProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far it is; "success" is the last status. Sizes are in bytes."""

    status: str
    digest: str | UnsetType = UNSET
    total: int | UnsetType = UNSET
    completed: int | UnsetType = UNSET


ROUTE: Final = Route(
    *("POST", "/api/pull", PULL, Kind.PAGE),
    summary="Download a model; its first request loads it.",
    request=OllamaPullRequest,
    example={"model": "template://demo"},
    responses={200: {JSON: OllamaProgress, NDJSON: (OllamaProgress, OllamaError)}},
    scope=Scope.MANAGE,
)
_SUCCESS: Final = OllamaProgress(status="success")


def pulled(server: ServerView, body: bytes) -> StreamedAnswer | Awaitable[Answer]:
    """Download what a request names.

    Raises:
        PayloadError, ParameterError: the body is wrong, or names no model.
        ModelConflictError: another model has this name.
    """
    fields = read_body(object_of(body), OllamaPullRequest)
    coming = server.pull(*place_of(bare_name(fields.model or fields.name)))
    if fields.stream is False:
        return _whole(coming)
    return StreamedAnswer(_lines(coming), {"content-type": NDJSON})


def place_of(name: str) -> tuple[str, str]:
    """(The name under which a model is registered, its URL); "": the URL's last part.

    Raises:
        ParameterError: it names nothing that can be downloaded.
    """
    if not name:
        raise ParameterError("model: required, expected a model's name", "model")
    if scheme_of(name) not in ("", "file"):
        return "", name
    if url := named_url(name):
        return name, url
    of_hub = next((name.removeprefix(prefix) for prefix in _HUB_PREFIXES if name.startswith(prefix)), name)
    if of_hub.count("/") == 1 and is_hub_id(of_hub.partition(":")[0]):
        return name, f"hf://{of_hub}"
    raise ParameterError(
        f"model: {name!r} can't be pulled: expected {choices(name, NAMED_MODELS)}, {_EXPECTED}; what is on the "
        "server's disk is registered with POST /models",
        "model",
    )


async def _whole(coming: AsyncIterator[DownloadPart]) -> Answer:
    async for _ in coming:
        pass
    return Answer(200, encode_json(_SUCCESS), {"content-type": JSON})


async def _lines(coming: AsyncIterator[DownloadPart]) -> AsyncGenerator[bytes, None]:
    yield encode_jsonlines(OllamaProgress(status="pulling manifest"))
    async for part in coming:
        shown = part.digest.partition(":")[2][:_SHOWN_DIGITS]
        yield encode_jsonlines(
            OllamaProgress(
                status=f"pulling {shown}",
                digest=part.digest,
                total=part.total_bytes or UNSET,
                completed=part.done_bytes or UNSET,
            )
        )
    yield encode_jsonlines(_SUCCESS)
