from random import Random

from session_scheduler.base.backoff import Backoff, backoff


def test_pauses_double_up_to_the_longest() -> None:
    assert [backoff(0.5, failures, 3.0) for failures in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_any_number_of_failures_has_a_pause() -> None:
    assert backoff(1.0, 10**9, 60.0) == 60.0


def test_by_chance_a_pause_is_shorter_by_up_to_half() -> None:
    chance = Random(1)
    pauses = {backoff(1.0, 1, 8.0, chance) for _ in range(100)}
    assert len(pauses) == 100
    assert all(1.0 <= pause <= 2.0 for pause in pauses)


def test_what_works_begins_small_again() -> None:
    pauses = Backoff(1.0, 64.0, Random(1))
    assert 8.0 <= [pauses.next() for _ in range(5)][-1] <= 16.0
    pauses.reset()
    assert pauses.next() <= 1.0
