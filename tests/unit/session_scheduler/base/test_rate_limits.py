"""Rate limits by client and in total, on a stopped clock."""

import pytest

from session_scheduler.base.clock import StoppedClock
from session_scheduler.base.rate_limits import MOST_CLIENTS, RateLimit


@pytest.fixture
def clock() -> StoppedClock:
    return StoppedClock(100.0)


def admitted(limit: RateLimit, client: str, requests: int) -> int:
    return sum(limit.admit(client) == 0 for _ in range(requests))


def test_a_client_may_send_the_requests_of_four_seconds_at_once_and_then_its_rate(clock: StoppedClock) -> None:
    limit = RateLimit(clock, 5.0)
    assert admitted(limit, "a", 100) == 20
    assert limit.admit("a") == pytest.approx(0.2)
    clock.advance(1.0)
    assert admitted(limit, "a", 100) == 5
    clock.advance(3600.0)
    assert admitted(limit, "a", 100) == 20


def test_a_client_does_not_use_up_the_requests_of_another(clock: StoppedClock) -> None:
    limit = RateLimit(clock, 5.0)
    assert admitted(limit, "a", 1000) == 20
    assert admitted(limit, "b", 1000) == 20


def test_all_clients_together_have_three_times_the_limit_of_one(clock: StoppedClock) -> None:
    limit = RateLimit(clock, 5.0)
    assert sum(admitted(limit, f"c{number}", 20) for number in range(50)) == 60
    clock.advance(2.0)
    assert sum(admitted(limit, f"d{number}", 20) for number in range(50)) == 30


def test_rejected_requests_do_not_delay_later_ones(clock: StoppedClock) -> None:
    limit = RateLimit(clock, 5.0)
    admitted(limit, "a", 100_000)
    clock.advance(0.2)
    assert limit.admit("a") == 0


def test_an_idle_client_is_spared_from_the_total_and_a_busy_one_is_not(clock: StoppedClock) -> None:
    limit = RateLimit(clock, 5.0, spare_idle=True)
    limit.admit("kubelet")
    clock.advance(5.0)
    for number in range(50):
        admitted(limit, f"c{number}", 20)
    assert limit.admit("kubelet") == 0
    assert limit.admit("kubelet") > 0


def test_spared_clients_do_not_delay_later_requests_of_others(clock: StoppedClock) -> None:
    limit = RateLimit(clock, 5.0, spare_idle=True)
    for number in range(1000):
        assert limit.admit(f"idle{number}") == 0
    limit.admit("busy")
    clock.advance(0.1)
    assert limit.admit("busy") == 0


def test_memory_is_bounded(clock: StoppedClock) -> None:
    limit = RateLimit(clock, 5.0)
    for number in range(3 * MOST_CLIENTS):
        limit.admit(f"c{number}")
    assert len(limit._clients) == MOST_CLIENTS
