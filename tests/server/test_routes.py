from collections.abc import Mapping

import pytest

from djl_python.config import ModelConfig
from djl_python.core.errors import ConfigError, MethodError, RouteError, ServingError
from djl_python.dialects.shared.base import Answer, Dialect, Kind, Parsed, Route
from djl_python.inputs import Input
from djl_python.server.routes import RouteTable


def dialect(name: str, *routes: Route) -> Dialect:
    class Some(Dialect):
        def parse(self, inputs: Input, model: ModelConfig) -> Parsed:
            raise NotImplementedError

        def error(
            self,
            error: ServingError,
            model: ModelConfig | None = None,
            *,
            operation: str = "",
            inputs: Input | None = None,
        ) -> Answer:
            return Answer(500, b"")

        def stream_error(
            self, error: ServingError, headers: Mapping[str, str], model: ModelConfig | None = None
        ) -> bytes:
            return b""

    Some.name, Some.routes = name, routes
    return Some()


@pytest.fixture
def table() -> RouteTable:
    lmi = dialect(
        "lmi",
        Route("POST", "/invocations", "predict"),
        Route("POST", "/predictions/{model}", "predict"),
        Route("POST", "/predictions/{model}/{version}", "predict"),
        Route("GET", "/predictions/all", "list"),
        Route("POST", "/", "root"),
        Route("*", "/any", "any"),
    )
    other = dialect("other", Route("GET", "/invocations", "info"), Route("GET", "/health", "health", Kind.PAGE))
    own = (Route("GET", "/health", "own"), Route("GET", "/ping", "ping", Kind.PAGE))
    return RouteTable({"lmi": lmi, "other": other}, own)


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("POST", "/invocations", ("lmi", "predict", "", "")),
        ("POST", "/predictions/m", ("lmi", "predict", "m", "")),
        ("POST", "/predictions/m/1.0", ("lmi", "predict", "m", "1.0")),
        ("POST", "/predictions/a%2Fb%20c", ("lmi", "predict", "a/b c", "")),
        ("GET", "/predictions/all", ("lmi", "list", "", "")),
        ("POST", "/", ("lmi", "root", "", "")),
        ("GET", "/invocations", ("other", "info", "", "")),
        ("HEAD", "/invocations", ("other", "info", "", "")),
        ("PUT", "/any", ("lmi", "any", "", "")),
        ("GET", "/health", ("other", "health", "", "")),
        ("POST", "//", ("lmi", "root", "", "")),
        ("POST", "/invocations/", ("lmi", "predict", "", "")),
        ("POST", "/predictions/m/", ("lmi", "predict", "m", "")),
    ],
)
def test_a_path_is_matched(table: RouteTable, method: str, path: str, expected: tuple[str, str, str, str]) -> None:
    match = table.match(method, path)
    assert match.dialect is not None
    assert (match.dialect.name, match.operation, match.model, match.version) == expected


@pytest.mark.parametrize(
    "path", ["/nothing", "/predictions", "/predictions/", "/predictions/a/b/c", "/invocations//", "//health"]
)
def test_an_unknown_path_is_404(table: RouteTable, path: str) -> None:
    with pytest.raises(RouteError, match=path):
        table.match("POST", path)
    assert table.methods(path) == []


def test_a_wrong_method_is_405_and_names_the_right_ones(table: RouteTable) -> None:
    with pytest.raises(MethodError, match="it takes OPTIONS, POST"):
        table.match("GET", "/predictions/m")
    assert table.methods("/predictions/m") == ["OPTIONS", "POST"]
    assert table.methods("/invocations") == ["GET", "HEAD", "OPTIONS", "POST"]


def test_a_path_of_fixed_segments_is_no_models(table: RouteTable) -> None:
    assert table.methods("/predictions/all") == ["GET", "HEAD", "OPTIONS"]
    with pytest.raises(MethodError, match="it takes GET, HEAD, OPTIONS"):
        table.match("POST", "/predictions/all")


def test_the_servers_own_pages_give_way_to_a_dialects(table: RouteTable) -> None:
    ping = table.match("HEAD", "/ping")
    assert (ping.dialect, ping.operation, ping.is_page) == (None, "ping", True)
    assert [(route.path, owner and owner.name) for route, owner in table.rows][-2:] == [
        ("/health", "other"),
        ("/ping", None),
    ]


def test_the_paths_dialect_answers_a_wrong_method(table: RouteTable) -> None:
    path_dialect = table.dialect_at("/invocations")
    assert path_dialect is not None and path_dialect.name == "lmi"
    assert table.dialect_at("/ping") is None


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/predictions", "lmi"),
        ("/predictions/m/1/more", "lmi"),
        ("/invocations/more", None),  # two dialects have it
        ("/any/more", "lmi"),
        ("/health/more", "other"),
        ("/ping/more", None),
        ("/nothing", None),
        ("/nothing/at/all", None),
    ],
)
def test_the_dialect_of_neighbouring_paths_answers_a_404(table: RouteTable, path: str, expected: str | None) -> None:
    with pytest.raises(RouteError):
        table.match("GET", path)
    path_dialect = table.dialect_at(path)
    assert (path_dialect.name if path_dialect is not None else None) == expected


@pytest.mark.parametrize("path", ["/models/{model}", "/models/{id}"])
def test_two_dialects_may_not_claim_one_path(path: str) -> None:
    first = dialect("first", Route("GET", "/models/{model}", "a"), Route("POST", "/models/{model}", "b"))
    with pytest.raises(ConfigError, match=r"GET /models/.* of second is taken already: /models/{model} of first"):
        RouteTable({"first": first, "second": dialect("second", Route("GET", path, "c"))})


def test_variable_segments_have_the_names_of_their_row() -> None:
    table = RouteTable(
        {"a": dialect("a", Route("GET", "/models/{id}", "show"), Route("POST", "/models/{model}/{version}", "do"))}
    )
    assert table.match("GET", "/models/x%2Fy").values == {"id": "x/y"}
    assert table.match("POST", "/models/x/1").values == {"model": "x", "version": "1"}
