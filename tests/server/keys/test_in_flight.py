"""What requests in flight count as, and how long others wait for them."""

from __future__ import annotations

import pytest

from djl_python.server.keys.in_flight import TokensInFlight, seconds_until_paid


def measured(tokens: int, seconds: float) -> TokensInFlight:
    """A tenant whose requests have had so many tokens in so many seconds."""
    in_flight = TokensInFlight()
    request = in_flight.begin(40, 0.0)
    in_flight.add(request, tokens)
    in_flight.end(request, seconds)
    return in_flight


def test_a_first_request_counts_by_its_body_then_by_its_tokens() -> None:
    in_flight = TokensInFlight()
    request = in_flight.begin(400, now_s=0.0)
    assert (in_flight.tokens, in_flight.outstanding) == (100, 100)
    in_flight.add(request, 60)
    assert (in_flight.tokens, in_flight.outstanding) == (100, 40)
    in_flight.add(request, 90)
    assert (in_flight.tokens, in_flight.outstanding, request.counted) == (150, 0, 150)
    in_flight.end(request, now_s=5.0)
    assert (in_flight.requests, in_flight.tokens, in_flight.outstanding) == (0, 0, 0)
    assert in_flight.expected(400) == 150


def test_later_requests_count_as_earlier_ones_had_on_average() -> None:
    in_flight = measured(1000, seconds=10.0)
    refused = in_flight.begin(40, now_s=20.0)
    in_flight.end(refused, now_s=20.0)  # it has had no token, and so says nothing of others
    assert in_flight.expected(4_000_000) == 1000
    short = in_flight.begin(40, now_s=20.0)
    in_flight.add(short, 500)
    in_flight.end(short, now_s=21.0)
    assert 500 < in_flight.expected(40) < 1000


def test_requests_in_flight_end_evenly_over_the_mean_time() -> None:
    in_flight = measured(100, seconds=8.0)
    assert in_flight.seconds_until_room(10_000, most=10) == 0  # one alone always has room
    for _ in range(4):
        in_flight.begin(40, now_s=10.0)
    assert in_flight.seconds_until_room(100, most=500) == 0
    assert in_flight.seconds_until_room(100, most=450) == pytest.approx(8.0 * 50 / 400)
    assert in_flight.seconds_until_room(100, most=100) == pytest.approx(8.0)
    assert in_flight.seconds_until_room(100, most=10) == pytest.approx(8.0)  # then it is alone


def test_debts_are_paid_later_while_requests_go_on_spending() -> None:
    idle = measured(100, seconds=10.0)
    assert seconds_until_paid(50, refill=5.0, in_flight=idle) == 10
    busy = measured(100, seconds=10.0)
    for _ in range(2):
        busy.begin(40, now_s=20.0)
    assert busy.per_second == 20
    assert seconds_until_paid(50, refill=25.0, in_flight=busy) == 10  # 200 outstanding: they spend all the time
    assert seconds_until_paid(50, refill=5.0, in_flight=busy) == 50  # 200 more, at some time
