from __future__ import annotations

import pytest

from djl_python.core.errors import RateLimitError
from djl_python.server.keys.rates import Claim, RateLimits, Rates, RequestInFlight, network_of


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def refusal(rates: Rates, who: str, limits: RateLimits) -> RateLimitError | None:
    try:
        rates.admit([Claim(who, limits)])
    except RateLimitError as error:
        return error
    return None


def begin(rates: Rates, limits: RateLimits, body_bytes: int = 40, who: str = "a") -> RequestInFlight:
    assert refusal(rates, who, limits) is None
    return rates.begin([Claim(who, limits)], body_bytes)


def spend(rates: Rates, limits: RateLimits, tokens: int) -> None:
    """A request has so many tokens at once."""
    request = begin(rates, limits)
    request.spend(tokens)
    request.end()


def test_requests_of_a_minute(clock: Clock) -> None:
    rates, limits = Rates(clock), RateLimits(requests=6)
    assert [refusal(rates, "a", limits) for _ in range(6)] == [None] * 6
    refused = refusal(rates, "a", limits)
    assert refused is not None
    assert (refused.what, refused.limit, refused.retry_after_s) == ("requests", "requests_per_minute", 10)
    assert "6 requests a minute (requests_per_minute). Please try again in 10s." in refused.message
    assert refusal(rates, "b", limits) is None  # another account has its own
    clock.now_s += 9.9
    assert refusal(rates, "a", limits) is not None
    clock.now_s += 0.1
    assert refusal(rates, "a", limits) is None
    assert refusal(rates, "a", limits) is not None
    clock.now_s += 3600
    assert [refusal(rates, "a", limits) is None for _ in range(7)] == [True] * 6 + [False]  # no more than a minute's


def test_tokens_may_be_owed_until_time_has_paid_them(clock: Clock) -> None:
    rates, limits = Rates(clock), RateLimits(tokens=600)
    spend(rates, limits, 599)
    spend(rates, limits, 301)  # one is left; how many it will be nobody knows yet
    refused = refusal(rates, "a", limits)
    assert refused is not None and (refused.what, refused.retry_after_s) == ("tokens", 31)
    clock.now_s += refused.retry_after_s
    assert refusal(rates, "a", limits) is None


def test_a_refused_request_is_told_when_the_last_of_its_limits_has_room(clock: Clock) -> None:
    rates, limits = Rates(clock), RateLimits(requests=60, tokens=600)
    for _ in range(59):
        assert refusal(rates, "a", limits) is None
    spend(rates, limits, 700)
    refused = refusal(rates, "a", limits)
    assert refused is not None and (refused.what, refused.retry_after_s) == ("tokens", 11)
    clock.now_s += refused.retry_after_s
    assert refusal(rates, "a", limits) is None


def test_a_refused_request_is_told_of_what_running_ones_will_spend(clock: Clock) -> None:
    rates, limits = Rates(clock), RateLimits(tokens=12_000)
    measured = begin(rates, limits)
    measured.spend(3000)
    clock.now_s += 60
    measured.end()
    long, running = begin(rates, limits), begin(rates, limits)
    long.spend(12_400)
    refused = refusal(rates, "a", limits)
    assert refused is not None and refused.retry_after_s == 5  # 3 if the bucket were all that counts
    for _ in range(refused.retry_after_s - 1):
        clock.now_s += 1
        running.spend(100)  # two requests, each at the 50 a second that was measured
        assert refusal(rates, "a", limits) is not None
    clock.now_s += 1
    running.spend(100)
    assert refusal(rates, "a", limits) is None


def test_tokens_in_flight(clock: Clock) -> None:
    rates, limits = Rates(clock), RateLimits(requests=100, tokens_in_flight=1000)
    first = begin(rates, limits, body_bytes=40_000)  # alone it has room, whatever its length
    with pytest.raises(RateLimitError, match=r"1000 tokens in flight \(tokens_in_flight\)") as refused:
        begin(rates, limits)
    assert (refused.value.what, refused.value.limit, refused.value.retry_after_s) == ("tokens", "tokens_in_flight", 1)
    assert rates.standing([Claim("a", limits)])["x-ratelimit-remaining-requests"] == "99"  # the refused one is free
    first.spend(500)
    clock.now_s += 8
    first.end()
    running = [begin(rates, limits), begin(rates, limits)]  # each is expected to have 500
    with pytest.raises(RateLimitError) as refused:
        begin(rates, limits)
    assert refused.value.retry_after_s == 4  # half of what is in flight will have ended
    assert begin(rates, limits, who="b").counted == 10
    running[0].end()
    running[0].end()
    running[0].spend(10_000)
    assert begin(rates, limits).counted == 500


def test_all_accounts_of_a_request_have_to_have_room_or_none_is_charged(clock: Clock) -> None:
    rates = Rates(clock)
    key, tenant = Claim("key", RateLimits(requests=5)), Claim("tenant", RateLimits(requests=1, tokens=100))
    rates.admit([key, tenant])
    with pytest.raises(RateLimitError):
        rates.admit([key, tenant])
    assert rates.standing([key])["x-ratelimit-remaining-requests"] == "4"
    assert rates.standing([key, tenant]) == {  # of each limit, what is nearest to its end
        "x-ratelimit-limit-requests": "1",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "1m0s",
        "x-ratelimit-limit-tokens": "100",
        "x-ratelimit-remaining-tokens": "100",
        "x-ratelimit-reset-tokens": "0ms",
    }


def test_headers_are_openais(clock: Clock) -> None:
    rates, limits = Rates(clock), RateLimits(requests=60, tokens=6000)
    spend(rates, limits, 12_600)
    assert rates.standing([Claim("a", limits)]) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "6000",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "2m6s",
    }


def test_a_limit_that_changes_counts_at_once(clock: Clock) -> None:
    rates = Rates(clock)
    for _ in range(10):
        rates.admit([Claim("a", RateLimits(requests=60))])
    assert [refusal(rates, "a", RateLimits(requests=2)) is None for _ in range(3)] == [True, True, False]
    assert refusal(rates, "a", RateLimits(tokens=1)) is None


def test_a_debt_stays_whoever_else_has_a_part_of_the_account(clock: Clock) -> None:
    rates, all_limits = Rates(clock), RateLimits(requests=100, tokens=600)
    spend(rates, all_limits, 1200)
    for other in (RateLimits(requests=100), RateLimits(tokens_in_flight=10)):
        request = begin(rates, other, body_bytes=0)
        request.spend(500)  # which is on another account
        request.end()
        assert "x-ratelimit-limit-tokens" not in rates.standing([Claim("a", other)])
    refused = refusal(rates, "a", all_limits)
    assert refused is not None and refused.retry_after_s == 61
    clock.now_s += 61
    assert refusal(rates, "a", all_limits) is None


def test_a_request_counts_towards_the_limits_of_its_own_part_alone(clock: Clock) -> None:
    rates, few = Rates(clock), RateLimits(requests=2, tokens_in_flight=1000)
    for _ in range(5):
        begin(rates, RateLimits(tokens=100_000), body_bytes=40_000).spend(10_000)
    running = [begin(rates, few), begin(rates, few)]  # the tokens in flight are another part's
    assert refusal(rates, "a", few) is not None
    assert refusal(rates, "a", RateLimits(tokens=100_000)) is None
    assert [request.counted for request in running] == [10, 10]


def test_memory_is_bounded(clock: Clock) -> None:
    rates, limits = Rates(clock, max_accounts=3), RateLimits(requests=1, tokens_in_flight=10)
    busy = begin(rates, limits, who="busy")
    for number in range(100):
        assert refusal(rates, "kept", limits) is None or number
        rates.admit([Claim(f"10.0.0.{number}", limits)])
    assert len(rates) == 3
    assert refusal(rates, "kept", limits) is not None  # what asks again and again is not forgotten
    assert refusal(rates, "10.0.0.0", limits) is None
    assert refusal(rates, "busy", limits) is not None  # nor what has requests in flight
    busy.end()


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unix", "unix"),
    ],
)
def test_addresses_of_a_network_count_as_the_same_client(address: str, network: str) -> None:
    assert network_of(address) == network
