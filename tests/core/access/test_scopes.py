"""Every route of the server, by who may use it: a new one without a key is a decision, not an oversight."""

from __future__ import annotations

from djl_python.core.access.scopes import KEY_SCOPES, Scope
from djl_python.dialects import all_dialects
from djl_python.server.app import OWN_ROUTES
from djl_python.server.routes import RouteTable

ROUTES = [route for route, _ in RouteTable(all_dialects(), OWN_ROUTES).rows]


def lines(scope: Scope) -> set[str]:
    """The routes with this scope: "METHOD path"."""
    return {f"{route.method} {route.path}" for route in ROUTES if route.scope is scope}


def test_probes() -> None:
    assert lines(Scope.PROBE) == {
        "GET /ping",
        "GET /health",
        "GET /",
        "GET /v2/health/live",
        "GET /v2/health/ready",
        "GET /v2/models/{model}/ready",
        "GET /v2/models/{model}/versions/{version}/ready",
    }


def test_only_pages_are_public() -> None:
    assert lines(Scope.PUBLIC) == {
        *("GET /openapi.json", "GET /docs", "GET /console", "GET /console/{file}", "GET /console/vendor/{file}")
    }


def test_metrics() -> None:
    assert lines(Scope.METRICS) == {"GET /metrics", "GET /server/metrics", "GET /console/processes"}


def test_routes_that_change_the_server_need_the_scope_manage() -> None:
    """All that changes the server or shows an operator's view of it, and no other route that changes anything."""
    assert lines(Scope.MANAGE) == {
        *(f"{verb} /{nouns}" for nouns in ("models", "workflows") for verb in ("GET", "POST")),
        *(
            f"{verb} /{nouns}/{{model}}{version}"
            for nouns in ("models", "workflows")
            for version in ("", "/{version}")
            for verb in ("GET", "PUT", "DELETE")
        ),
        *(
            line
            for prefix in ("/models/{model}/adapters", "/adapters")
            for line in (
                *(f"GET {prefix}", f"POST {prefix}", f"GET {prefix}/{{adapter}}", f"PUT {prefix}/{{adapter}}"),
                *(f"DELETE {prefix}/{{adapter}}", f"POST {prefix}/{{adapter}}/update"),
            )
        ),
        *("POST /v1/load_lora_adapter", "POST /v1/unload_lora_adapter"),
        *("POST /models/{model}/unload", "POST /workflows/{model}/unload"),
        *("POST /api/copy", "DELETE /api/delete", "POST /api/push", "POST /api/create", "POST /api/pull"),
        *("POST /v2/repository/models/{model}/load", "POST /v2/repository/models/{model}/unload"),
        *("POST /server/logging", "GET /console/settings", "GET /console/log"),
    }


def test_a_key_has_no_scope_that_needs_none() -> None:
    assert set(Scope) - set(KEY_SCOPES) == {Scope.PUBLIC, Scope.PROBE}
