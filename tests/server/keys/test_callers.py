from __future__ import annotations

from typing import Any

import pytest

from djl_python.config import Networks, ServerConfig
from djl_python.core.access.api_key import ANYONE, ApiKey, digest
from djl_python.core.access.scopes import Scope
from djl_python.core.access.tenant_limits import TenantLimits
from djl_python.core.errors import RateLimitError
from djl_python.dialects.shared.base import Route
from djl_python.ipc.protocol import Call
from djl_python.server.keys.callers import Callers, address_of
from djl_python.server.keys.rates import Rates
from djl_python.server.metrics.metrics import Metrics

ROUTE = Route("POST", "/invocations", "predict")
PROXIES = Networks.parse("10.0.0.0/8, unix, 2001:db8::/32")


@pytest.mark.parametrize(
    ("client", "forwarded", "address"),
    [
        ("10.0.0.1", "203.0.113.7", "203.0.113.7"),
        ("10.0.0.1", "203.0.113.7:4711", "203.0.113.7"),
        ("10.0.0.1", "[2001:db9::1]:4711", "2001:db9::1"),
        ("10.0.0.1", "1.2.3.4, 203.0.113.7, 10.0.0.2", "203.0.113.7"),  # 1.2.3.4 is what the client says
        ("::ffff:10.0.0.1", "203.0.113.7", "203.0.113.7"),
        ("2001:db8::1", "203.0.113.7", "203.0.113.7"),
        ("unix", "203.0.113.7", "203.0.113.7"),
        ("10.0.0.1", "10.0.0.3, 10.0.0.2", "10.0.0.3"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", " , ", "10.0.0.1"),
        ("203.0.113.9", "203.0.113.7", "203.0.113.9"),  # nobody trusts it
    ],
)
def test_the_client_behind_proxies(client: str, forwarded: str, address: str) -> None:
    assert address_of(client, {"x-forwarded-for": forwarded}, PROXIES) == address
    assert address_of(client, {"x-forwarded-for": forwarded}, Networks()) == client


def test_trusted_proxies_that_are_no_networks() -> None:
    with pytest.raises(ValueError, match=r"10\.0\.0\.1/8 is none of these"):
        Networks.parse("unix, 10.0.0.1/8")


def callers(**settings: Any) -> Callers:
    return Callers(ServerConfig(**settings), Metrics(), Rates(lambda: 0.0), have_keys=True)


def admitted(server: Callers, key: ApiKey, tenant: str = "", client: str = "10.0.0.1", most: int = 50) -> int:
    """How many requests of a sender are admitted, up to the first that is not."""
    for number in range(most):
        try:
            server.caller(key, client, {"x-tenant": tenant} if tenant else {}).admit(ROUTE)
        except RateLimitError:
            return number
    return most


def key_of(name: str, secret: str = "", **limits: Any) -> ApiKey:
    return ApiKey(name=name, sha256=digest(secret or name), scopes=(Scope.INFER,), **limits)


def test_a_tenant_is_a_keys_name_and_has_its_own_number_or_the_default() -> None:
    server = callers(requests_per_minute=3, tenant_requests_per_minute=TenantLimits.parse("gold=5, staff=none"))
    assert admitted(server, key_of("gold", "1")) == 5
    assert admitted(server, key_of("gold", "2")) == 0  # another key of the same tenant
    assert admitted(server, key_of("staff")) == 50
    assert admitted(server, key_of("trial")) == 3


def test_a_keys_line_is_instead_of_its_tenants_numbers() -> None:
    server = callers(requests_per_minute=3, tokens_per_minute=100)
    key = key_of("a", requests_per_minute=7)
    assert admitted(server, key) == 7
    headers = server.caller(key, "10.0.0.1", {})
    with pytest.raises(RateLimitError):
        headers.admit(ROUTE)
    assert headers.headers["x-ratelimit-limit-requests"] == "7"
    assert headers.headers["x-ratelimit-limit-tokens"] == "100"


@pytest.mark.parametrize("named", ["", "a"])
def test_a_key_with_numbers_of_its_own_does_not_pay_what_its_tenants_other_key_owes(named: str) -> None:
    server = callers(requests_per_minute=100, tokens_per_minute=1000, tenant_header="X-Tenant")
    owing, own = key_of("a", "1"), key_of("a", "2", tokens_per_minute=5000)
    caller = server.caller(owing, "10.0.0.1", {})
    caller.admit(ROUTE)
    caller.begin(Call(1, "djl", "predict", "POST", "/invocations", (), {}, b"x"), query=False)
    caller.used(0, 50_000)
    caller.ended()
    assert admitted(server, own, named) == (0 if named else 50)
    assert admitted(server, owing) == 0


def test_a_tenant_that_a_header_names_has_limits_beside_its_gateways_key() -> None:
    server = callers(tenant_header="X-Tenant", tenant_requests_per_minute=TenantLimits.parse("a=2"))
    gateway = key_of("gateway", requests_per_minute=10)
    assert admitted(server, gateway, "a") == 2
    assert admitted(server, gateway, "b") == 8
    assert admitted(server, gateway) == 0


def test_a_header_from_another_address_than_a_proxys_names_no_tenant() -> None:
    server = callers(tenant_header="X-Tenant", trusted_proxies=PROXIES, requests_per_minute=2)
    assert [admitted(server, key_of("key"), f"name {number}", "203.0.113.9") for number in range(3)] == [2, 0, 0]
    assert [admitted(server, key_of("key"), f"name {number}") for number in range(3)] == [2, 2, 2]


def test_names_that_anybody_makes_up_are_one_in_the_metrics() -> None:
    metrics = Metrics()
    server = Callers(
        ServerConfig(
            tenant_header="X-Tenant", requests_per_minute=1, tenant_requests_per_minute=TenantLimits.parse("gold=1")
        ),
        metrics,
        Rates(lambda: 0.0),
    )
    for name in ["gold", *map(str, range(1000))]:
        assert admitted(server, ANYONE, name) == 1
    shown = [line for line in metrics.render().decode().splitlines() if line.startswith("djl_rate_limited_requests_t")]
    assert shown == [
        'djl_rate_limited_requests_total{limit="requests_per_minute",tenant="gold"} 1.0',
        'djl_rate_limited_requests_total{limit="requests_per_minute",tenant="other"} 1000.0',
    ]
