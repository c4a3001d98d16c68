import json

from djl_python.config import ModelConfig
from djl_python.core.errors import OverloadedError, RouteError, UnavailableError
from djl_python.dialects import dialect
from djl_python.server.http.answers import error_answer, pretty_json, reason


def test_without_a_route_an_error_has_djls_shape() -> None:
    answer = error_answer(RouteError("there is nothing at /x"), None, None)
    assert answer.status == 404
    assert json.loads(answer.body) == {
        "code": 404,
        "type": "ResourceNotFoundException",
        "message": "there is nothing at /x",
    }
    assert answer.body.startswith(b'{\n  "code": 404,\n')


def test_who_is_to_come_back_is_told_when() -> None:
    assert error_answer(OverloadedError("full"), None, None).headers["retry-after"] == "1"
    answer = error_answer(UnavailableError("loading"), dialect("lmi"), ModelConfig(name="m"))
    assert answer.headers["retry-after"] == "5" and answer.status == 503


def test_reason_phrases_are_never_ours() -> None:
    assert (reason(424), reason(299)) == ("Failed Dependency", "Unknown")
    assert pretty_json({}) == b"{}\n"
