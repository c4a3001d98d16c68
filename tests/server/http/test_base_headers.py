from email.utils import parsedate_to_datetime

from djl_python.config import ServerConfig
from djl_python.server.http.base_headers import BaseHeaders


def test_an_answer_has_a_date_of_its_own_and_no_more() -> None:
    base = BaseHeaders(ServerConfig())
    headers = base.now()
    assert list(headers) == ["Date"] and parsedate_to_datetime(headers["Date"])
    headers["X"] = "y"
    assert "X" not in base.now()
    assert base.request_id == ServerConfig().request_id_header_key


def test_cors_headers_come_with_an_origin() -> None:
    assert list(BaseHeaders(ServerConfig(cors_allowed_methods="GET")).now()) == ["Date"]
    headers = BaseHeaders(ServerConfig(cors_allowed_origin="*", cors_allowed_methods="GET")).now()
    assert headers["Access-Control-Allow-Origin"] == "*" and headers["Access-Control-Allow-Methods"] == "GET"
    assert "Access-Control-Allow-Headers" not in headers
