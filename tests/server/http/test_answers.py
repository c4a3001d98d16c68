import json

from djl_python.config import ModelConfig
from djl_python.core.errors import OverloadedError, RouteError, UnavailableError
from djl_python.dialects import dialect
from djl_python.formats.http_rules import phrase_of
from djl_python.server.http.answers import error_answer, pretty_json


def test_without_a_route_an_error_has_djls_shape() -> None:
    answer = error_answer(RouteError("there is nothing at /x"), None, None)
    assert answer.status == 404
    assert json.loads(answer.body) == {
        "code": 404,
        "type": "ResourceNotFoundException",
        "message": "there is nothing at /x",
    }
    assert answer.body.startswith(b'{\n  "code": 404,\n')


def test_temporary_errors_have_a_retry_after() -> None:
    assert error_answer(OverloadedError("full"), None, None).headers["retry-after"] == "1"
    answer = error_answer(UnavailableError("loading"), dialect("lmi"), ModelConfig(name="m"))
    assert answer.headers["retry-after"] == "5" and answer.status == 503


def test_reason_phrases_are_never_ours() -> None:
    assert [phrase_of(status) for status in (424, 529, 299)] == ["Failed Dependency", "Overloaded", "Unknown"]
    assert pretty_json({}) == b"{}\n"
