import msgspec
import pytest

from djl_python.core import errors
from djl_python.dialects.shared.djl_errors import DjlError, djl_error


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (errors.RouteError("x"), 404, "ResourceNotFoundException"),
        (errors.ModelNotFoundError("x"), 404, "ModelNotFoundException"),
        (errors.ModelNotNamedError("x"), 400, "BadRequestException"),
        (errors.ModelConflictError("x"), 409, "BadRequestException"),
        (errors.PayloadError("x"), 400, "BadRequestException"),
        (errors.DecodeError("x"), 400, "BadRequestException"),
        (errors.MediaTypeError("x"), 415, "BadRequestException"),
        (errors.ParameterError("x"), 400, "BadRequestException"),
        (errors.MethodError("x"), 405, "MethodNotAllowedException"),
        (errors.TooLargeError("x"), 413, "RequestEntityTooLargeException"),
        (errors.HeadTooLongError("x"), 431, "RequestHeaderFieldsTooLargeException"),
        (errors.OverloadedError("x"), 503, "WlmCapacityException"),
        (errors.UnavailableError("x"), 503, "ServiceUnavailableException"),
        (errors.ServingError("x"), 500, "InternalServerException"),
    ],
)
def test_errors_have_djls_names(error: errors.ServingError, code: int, kind: str) -> None:
    assert djl_error(error) == DjlError(code, kind, "x")


def test_a_status_may_be_another() -> None:
    body = msgspec.json.encode(djl_error(errors.OverloadedError("full"), 429))
    assert body == b'{"code":429,"type":"WlmCapacityException","message":"full"}'
