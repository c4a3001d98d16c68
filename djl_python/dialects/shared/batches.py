"""Files and batches that the server keeps: their shapes, and the operations that `server/batches` answers.

Used in the front end. A dialect has batches by declaring routes of kind KEPT with these operations; the requests of
its batches go to its routes that generate. The shapes are those of OpenAI's API reference, Files and Batch. What
differs, because a server of one's own has no accounts: files are for batches only, and completion_window may be any
number of hours.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

UPLOAD_FILE: Final = "upload_file"
LIST_FILES: Final = "list_files"
FILE: Final = "file"
DELETE_FILE: Final = "delete_file"
FILE_CONTENT: Final = "file_content"
CREATE_BATCH: Final = "create_batch"
LIST_BATCHES: Final = "list_batches"
BATCH: Final = "batch"
CANCEL_BATCH: Final = "cancel_batch"

Purpose = Literal["batch", "batch_output"]

_HOUR_S: Final = 3600
Seconds = Annotated[int, Meta(ge=_HOUR_S, le=30 * 24 * _HOUR_S)]
_Time = Annotated[int | None, Meta(description="Unix seconds.")]
_Metadata = dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]]


class FileObject(msgspec.Struct, frozen=True, kw_only=True):
    """A file that the server keeps."""

    id: str
    object: Literal["file"] = "file"
    bytes: Annotated[int, Meta(ge=0)]
    created_at: int
    expires_at: _Time = None
    filename: str
    purpose: Purpose
    status: Literal["processed"] = "processed"


class FileList(msgspec.Struct, frozen=True, kw_only=True):
    """Files, and whether there are more."""

    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None = None
    last_id: str | None = None
    has_more: bool = False


class FileDeleted(msgspec.Struct, frozen=True, kw_only=True):
    """A file that is kept no longer."""

    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


class Expiry(msgspec.Struct, frozen=True):
    """When a file expires."""

    seconds: Seconds
    anchor: Literal["created_at"]


class Upload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parts of the form that uploads a file."""

    file: Annotated[
        str, Meta(description="JSON lines.", extra_json_schema={"contentMediaType": "application/octet-stream"})
    ]
    purpose: Literal["batch"]
    expires_after: Expiry | None = None


class FileQuery(msgspec.Struct, frozen=True):
    """Which files are listed."""

    after: Annotated[str, Meta(description="An id: those behind it.")] = ""
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 10_000
    order: Literal["asc", "desc"] = "desc"
    purpose: str = ""


class BatchRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body that creates a batch."""

    input_file_id: Annotated[str, Meta(min_length=1)]
    endpoint: Annotated[str, Meta(min_length=1, description="Of all its requests.")]
    completion_window: Annotated[
        str,
        Meta(
            pattern="^[1-9][0-9]{0,2}h$",
            description="Hours that it has: 24h.",
            extra={"expected": 'hours, like "24h"'},
        ),
    ]
    metadata: Annotated[_Metadata, Meta(max_length=16)] | None = None
    output_expires_after: Expiry | None = None


class RequestCounts(msgspec.Struct, frozen=True):
    """A batch's requests, by outcome."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchFault(msgspec.Struct, frozen=True):
    """A fault of a batch's input."""

    code: str
    message: str
    param: str | None
    line: int | None


class BatchFaults(msgspec.Struct, frozen=True, kw_only=True):
    """Why a batch has failed."""

    object: Literal["list"] = "list"
    data: list[BatchFault]


class InputTokensDetails(msgspec.Struct, frozen=True):
    """Details of the input's tokens."""

    cached_tokens: int = 0


class OutputTokensDetails(msgspec.Struct, frozen=True):
    """Details of the output's tokens."""

    reasoning_tokens: int = 0


class BatchUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a batch's answers, as far as they have a usage."""

    input_tokens: int
    input_tokens_details: InputTokensDetails = InputTokensDetails()
    output_tokens: int
    output_tokens_details: OutputTokensDetails = OutputTokensDetails()
    total_tokens: int


Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | UnsetType = UNSET
    errors: BatchFaults | None = None
    input_file_id: str
    completion_window: str
    status: Status
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: _Time = None
    expires_at: int
    finalizing_at: _Time = None
    completed_at: _Time = None
    failed_at: _Time = None
    expired_at: _Time = None
    cancelling_at: _Time = None
    cancelled_at: _Time = None
    request_counts: RequestCounts = RequestCounts()
    usage: BatchUsage | UnsetType = UNSET
    metadata: dict[str, str] | None = None


class BatchList(msgspec.Struct, frozen=True, kw_only=True):
    """Batches, the newest first, and whether there are more."""

    object: Literal["list"] = "list"
    data: list[Batch]
    first_id: str | None = None
    last_id: str | None = None
    has_more: bool = False


class BatchQuery(msgspec.Struct, frozen=True):
    """Which batches are listed."""

    after: Annotated[str, Meta(description="An id: those behind it.")] = ""
    limit: Annotated[int, Meta(ge=1, le=100)] = 20
