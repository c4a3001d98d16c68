import pytest

from djl_python.dialects.base import Dialect, Answer, Route
from djl_python.errors import MethodError, RouteError
from djl_python.server.routes import RouteTable


def dialect(name: str, *routes: Route) -> Dialect:
    class Some(Dialect):
        def parse(self, inputs, model):
            raise NotImplementedError

        def error(self, error, model=None, *, inputs=None):
            return Answer(500, b"")

        def stream_error(self, error, content_type):
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
    other = dialect("other", Route("POST", "/invocations", "stolen"), Route("GET", "/invocations", "info"))
    return RouteTable({"lmi": lmi, "other": other})


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("POST", "/invocations", ("lmi", "predict", "", "")),
        ("POST", "/predictions/m", ("lmi", "predict", "m", "")),
        ("POST", "/predictions/m/1.0", ("lmi", "predict", "m", "1.0")),
        ("POST", "/predictions/a%2Fb%20c", ("lmi", "predict", "a/b c", "")),
        ("GET", "/predictions/all", ("lmi", "list", "", "")),
        ("POST", "/predictions/all", ("lmi", "predict", "all", "")),
        ("POST", "/", ("lmi", "root", "", "")),
        ("GET", "/invocations", ("other", "info", "", "")),
        ("HEAD", "/invocations", ("other", "info", "", "")),
        ("PUT", "/any", ("lmi", "any", "", "")),
    ],
)
def test_a_path_is_matched(table, method, path, expected):
    match = table.match(method, path)
    assert (match.dialect.name, match.operation, match.model, match.version) == expected


@pytest.mark.parametrize("path", ["/nothing", "/predictions", "/predictions/", "/predictions/a/b/c", "/invocations/"])
def test_an_unknown_path_is_404(table, path):
    with pytest.raises(RouteError, match=path):
        table.match("POST", path)
    assert table.methods(path) == []


def test_a_wrong_method_is_405_and_names_the_right_ones(table):
    with pytest.raises(MethodError, match="it takes OPTIONS, POST"):
        table.match("GET", "/predictions/m")
    assert table.methods("/predictions/m") == ["OPTIONS", "POST"]
    assert table.methods("/invocations") == ["GET", "HEAD", "OPTIONS", "POST"]
    assert table.methods("/predictions/all") == ["GET", "HEAD", "OPTIONS", "POST"]
