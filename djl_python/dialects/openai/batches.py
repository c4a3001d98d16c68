"""The routes of OpenAI's files and batches, which the server itself answers.

Used in the front end. Source: OpenAI's API reference, Files and Batch.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta

from ...formats.json_framing import JSON
from ..shared import batches as kept
from ..shared.base import Kind, Route

#: Endpoints of batches as the document shows them; the server takes them from its routes.
ENDPOINTS: Final = (
    *("/v1/chat/completions", "/v1/completions", "/v1/embeddings"),
    *("/v1/score", "/score", "/v1/rerank", "/v2/rerank", "/rerank", "/pooling", "/classify"),
)


class BatchRequest(kept.BatchRequest, frozen=True, forbid_unknown_fields=True):
    """The body that creates a batch, as the document shows it."""

    endpoint: Annotated[
        str, Meta(min_length=1, description="Of all its requests.", extra_json_schema={"enum": list(ENDPOINTS)})
    ]


def _route(method: str, path: str, operation: str, summary: str, shape: Any, **more: Any) -> Route:
    answers = shape if isinstance(shape, dict) else {JSON: shape}
    return Route(method, path, operation, Kind.KEPT, summary, responses={200: answers}, **more)


ROUTES: Final = (
    _route(
        "POST",
        "/v1/files",
        kept.UPLOAD_FILE,
        "Upload a batch's input.",
        kept.FileObject,
        request=kept.Upload,
        form=True,
    ),
    _route("GET", "/v1/files", kept.LIST_FILES, "List the files.", kept.FileList, query=kept.FileQuery),
    _route("GET", "/v1/files/{file_id}", kept.FILE, "One file.", kept.FileObject),
    _route("DELETE", "/v1/files/{file_id}", kept.DELETE_FILE, "Delete a file.", kept.FileDeleted),
    _route(
        *("GET", "/v1/files/{file_id}/content", kept.FILE_CONTENT, "The content of a file."),
        {"application/octet-stream": str},
    ),
    _route(
        *("POST", "/v1/batches", kept.CREATE_BATCH, "Create a batch from a file of requests.", kept.Batch),
        request=BatchRequest,
        example={"input_file_id": "file-1", "endpoint": ENDPOINTS[0], "completion_window": "24h"},
    ),
    _route(
        "GET",
        "/v1/batches",
        kept.LIST_BATCHES,
        "List the batches, newest first.",
        kept.BatchList,
        query=kept.BatchQuery,
    ),
    _route("GET", "/v1/batches/{batch_id}", kept.BATCH, "A batch and its progress.", kept.Batch),
    _route("POST", "/v1/batches/{batch_id}/cancel", kept.CANCEL_BATCH, "Cancel a batch.", kept.Batch),
)
