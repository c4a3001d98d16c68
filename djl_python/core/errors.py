"""The errors of this project, one class per kind, each with its HTTP status unless a dialect documents another.

Runs in every process. A class says *what* happened; a dialect (`djl_python.dialects`) decides how it looks on the
wire, so messages here are plain sentences without markup.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import ClassVar, Final


def printable(text: str) -> str:
    """`text` in a form that UTF-8 can encode: lone surrogates, as in undecodable file names, become escapes."""
    return text.encode(errors="backslashreplace").decode()


class ServingError(Exception):
    """Base of everything this project raises on purpose.

    Attributes:
        status: HTTP status for dialects that do not document their own.
        kind: stable machine-readable name; it crosses processes, see `from_kind`.
        message: what went wrong, made `printable`.
    """

    status: ClassVar[int] = 500
    kind: ClassVar[str] = "internal"

    def __init__(self, message: str) -> None:
        message = printable(str(message))  # user code raises these too, with any object
        super().__init__(message)
        self.message = message


class PayloadError(ServingError):
    """The body is not what the route takes: not JSON, a required field missing or of a wrong type."""

    status = 400
    kind = "payload"

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class DecodeError(PayloadError, ValueError):
    """The content does not match its content-type. Also a ValueError, because handlers catch that around `decode`."""

    kind = "content"


class MediaTypeError(PayloadError):
    """The body's content-type is not what the route takes."""

    status = 415
    kind = "media_type"


class TaskError(PayloadError):
    """The path is for models of other tasks than this one."""

    kind = "task"


class ParameterError(ServingError):
    """A generation parameter has a wrong type or is out of range. `field` is its path in the body."""

    status = 400
    kind = "parameter"

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class ContextLengthError(ParameterError):
    """A prompt, or a prompt and the tokens to generate, does not fit into the model's context.

    Attributes:
        prompt_tokens, max_new_tokens: of the request; `max_new_tokens` is None where the prompt alone is too long.
        limit: the model's context, in tokens; where the prompt alone is too long, one more than its limit.
        bound: "at least " where counting stopped early, so that `prompt_tokens` is a lower bound, else "".
    """

    kind = "context_length"

    def __init__(
        self,
        prompt_tokens: int,
        max_new_tokens: int | None,
        limit: int,
        field: str = "inputs",
        reason: str = "",
        *,
        at_least: bool = False,
    ) -> None:
        self.bound = "at least " if at_least else ""
        if max_new_tokens is None:
            reason = reason or f"the model's context is {limit} tokens, and one is for the answer"
            what = f"{self.bound}{prompt_tokens} tokens, expected at most {limit - 1} ({reason}); "
            what += "parameters.truncate shortens a prompt"
        else:
            what = f"{prompt_tokens} tokens and {max_new_tokens} to generate, expected at most {limit} together"
        super().__init__(f"{field}: {what}", field)
        self.prompt_tokens = prompt_tokens
        self.max_new_tokens = max_new_tokens
        self.limit = limit


class TextLengthError(ContextLengthError):
    """A text that a model reads whole is longer than it takes. `limit` is the most tokens of a text."""

    kind = "text_length"

    def __init__(self, tokens: int, limit: int, field: str, *, at_least: bool = False) -> None:
        self.bound = "at least " if at_least else ""
        message = f"{field}: {self.bound}{tokens} tokens, expected at most {limit}; a request may have texts truncated"
        ParameterError.__init__(self, message, field)
        self.prompt_tokens = tokens
        self.max_new_tokens = None
        self.limit = limit


class RouteError(ServingError):
    """No route has this path."""

    status = 404
    kind = "not_found"


class ModelNotFoundError(ServingError):
    """No model, or no version of the model, has this name."""

    status = 404
    kind = "model_not_found"


class KeptNotFoundError(ServingError):
    """The server keeps no file, or no batch, of this id. `field` is what the request calls the id."""

    status = 404
    kind = "kept_not_found"

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class ModelConflictError(ServingError):
    """A model of this name and version is registered already."""

    status = 409
    kind = "model_conflict"


class ModelNotNamedError(ServingError):
    """Several models are loaded and the request names none."""

    status = 400
    kind = "model_not_named"


class ForbiddenError(ServingError):
    """The request's client, or its API key, may not do that."""

    status = 403
    kind = "forbidden"


class UnauthorizedError(ServingError):
    """The request needs an API key, and has none that is valid."""

    status = 401
    kind = "unauthorized"


class MethodError(ServingError):
    """The path exists, the method does not."""

    status = 405
    kind = "method"


class TooLargeError(ServingError):
    """The body is longer than max_request_size, or than what may be sent to this path."""

    status = 413
    kind = "too_large"


class HeadTooLongError(TooLargeError):
    """The request's path and headers are longer than what is read of them."""

    status = 431
    kind = "head_too_long"


class StorageError(ServingError):
    """The server's disk is full, or refuses to store a file."""

    status = 507
    kind = "storage"

    @classmethod
    def of(cls, cause: OSError) -> StorageError:
        """The error, without the paths that the cause names."""
        return cls(f"the server can't write this to its disk: {cause.strerror or type(cause).__name__}")


class OverloadedError(ServingError):
    """The queue is full. Dialects choose 429 or 503; Retry-After is always sent."""

    status = 503
    kind = "overloaded"
    retry_after_s = 1


class RateLimitError(OverloadedError):
    """The sender has reached a limit of their tenant, key or address.

    Attributes:
        what: what there is too much of: "requests" or "tokens".
        retry_after_s: seconds until there is room for more.
        limit: the name of the limit: "requests_per_minute", ...
    """

    status = 429
    kind = "rate_limit"

    def __init__(self, message: str, what: str = "requests", retry_after_s: int = 1, limit: str = "") -> None:
        super().__init__(message)
        self.what = what
        self.retry_after_s = retry_after_s
        self.limit = limit


class UnavailableError(ServingError):
    """The model is loading, has failed, or the server is draining."""

    status = 503
    kind = "unavailable"
    retry_after_s = 5


class HandlerError(ServingError):
    """The user's handler raised, or returned something invalid. The message is one line; the traceback is logged."""

    status = 424
    kind = "handler"


class GenerationError(ServingError):
    """Generation failed after the request was accepted.

    Attributes:
        by_handler: whether a handler without an engine failed, which may not have been generating text.
    """

    status = 424
    kind = "generation"
    by_handler = False


class WorkerDiedError(GenerationError):
    """The process that was answering this request has ended."""

    kind = "worker_died"


class PredictTimeoutError(GenerationError):
    """No answer within predict_timeout, or no token within the request's own deadline."""

    kind = "timeout"


class ConfigError(ServingError):
    """A setting is wrong. The message names file, line, key and what was expected."""

    kind = "config"


class SourceError(ConfigError):
    """The source has no model."""

    status = 404
    kind = "source"


class ModelLoadError(ServingError):
    """A model did not load. The message is one readable block, trimmed to what its owner can act on."""

    kind = "load"


class MemoryLoadError(ModelLoadError):
    """A model did not load because there is no memory for it."""

    status = 507
    kind = "load_memory"


class MachineLoadError(ModelLoadError):
    """A model did not load because the machine lacks something else: descriptors, processes, its GPU."""

    kind = "load_machine"


#: torch's errors for no memory and for a GPU that does not answer, by name: not every process can import torch.
_TORCHS_MEMORY_ERROR: Final = "OutOfMemoryError"
_TORCHS_DEVICE_ERROR: Final = "AcceleratorError"
#: The system's error numbers for a file that can't grow: full disk, exhausted quota, limit on file sizes.
_NO_ROOM: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
#: The system's error numbers for no further descriptor or process.
_EXHAUSTED: Final = {errno.EMFILE, errno.ENFILE, errno.EAGAIN}


def lacks_memory(error: BaseException | None) -> bool:
    """Whether an error or one of its causes says that there is no memory."""
    return any(
        isinstance(cause, MemoryLoadError | MemoryError)
        or type(cause).__name__ == _TORCHS_MEMORY_ERROR
        or (isinstance(cause, OSError) and cause.errno == errno.ENOMEM)
        for cause in _causes(error)
    )


def lacks_room(error: BaseException | None) -> bool:
    """Whether an error or one of its causes says that there is no room on the disk."""
    return any(isinstance(cause, OSError) and cause.errno in _NO_ROOM for cause in _causes(error))


def lacks_machine(error: BaseException | None) -> bool:
    """Whether an error or one of its causes says that the machine lacks descriptors, processes or its GPU."""
    return any(
        isinstance(cause, MachineLoadError)
        or type(cause).__name__ == _TORCHS_DEVICE_ERROR
        or (isinstance(cause, OSError) and cause.errno in _EXHAUSTED)
        for cause in _causes(error)
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def load_error(message: str, *, no_memory: bool = False, lacking: bool = False) -> ModelLoadError:
    """The error for a model that did not load; another process gave the reason."""
    if no_memory:
        return MemoryLoadError(message)
    return MachineLoadError(message) if lacking else ModelLoadError(message)


_KINDS: dict[str, type[ServingError]] = {}


def _collect(cls: type[ServingError]) -> None:
    _KINDS[cls.kind] = cls
    for sub in cls.__subclasses__():
        _collect(sub)


_collect(ServingError)


def from_kind(kind: str, message: str) -> ServingError:
    """Rebuild an error sent between processes as (kind, message); ParameterError stands for all its subclasses."""
    error_class = _KINDS.get(kind, ServingError)
    return (ParameterError if issubclass(error_class, ParameterError) else error_class)(message)
