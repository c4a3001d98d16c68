from email.utils import parsedate_to_datetime

from djl_python.config import ServerConfig
from djl_python.server.http.base_headers import BaseHeaders


def test_an_answer_has_a_date_of_its_own_and_no_more() -> None:
    base = BaseHeaders(ServerConfig())
    headers = base.now()
    assert list(headers) == ["Date", "X-Content-Type-Options"] and parsedate_to_datetime(headers["Date"])
    headers["X"] = "y"
    assert "X" not in base.now()
    assert base.request_id == ServerConfig().request_id_header_key


def test_browsers_are_told_to_take_an_answer_for_what_it_says() -> None:
    assert BaseHeaders(ServerConfig()).now()["X-Content-Type-Options"] == "nosniff"


def test_an_allowed_origin_may_read() -> None:
    base = BaseHeaders(ServerConfig(cors_allowed_origin="https://a.example"))
    assert base.now("https://a.example")["Access-Control-Allow-Origin"] == "https://a.example"
    assert "Access-Control-Allow-Origin" not in base.now("https://b.example")
