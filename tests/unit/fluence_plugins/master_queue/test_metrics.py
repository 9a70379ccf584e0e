"""What is measured of MasterQueues, as Prometheus takes it."""

from __future__ import annotations

from fluence_plugins.master_queue.metrics import Measured, PoolFigure


def samples(meter: Measured) -> dict[tuple[str, ...], float]:
    return {
        (one.name, *(f"{name}={value}" for name, value in one.labels.items())): one.value
        for family in meter.families()
        for one in family.samples
    }


def test_nothing_is_measured_before_something_happens() -> None:
    assert samples(Measured()) == {}
    assert all(family.documentation for family in Measured().families())


def test_everything_that_happens_is_counted_by_its_labels() -> None:
    meter = Measured()
    for result in ("taken", "taken", "refused"):
        meter.message("interlink.resources", result)
    meter.applied("ClusterQueue", "created")
    meter.reconnected("one")
    meter.dropped("one")
    meter.dropped("one")
    meter.links = lambda: {"one": True, "two": False}
    assert samples(meter) == {
        ("fluence_masterqueue_messages_total", "subject=interlink.resources", "result=taken"): 2,
        ("fluence_masterqueue_messages_total", "subject=interlink.resources", "result=refused"): 1,
        ("fluence_masterqueue_applies_total", "kind=ClusterQueue", "result=created"): 1,
        ("fluence_masterqueue_reconnects_total", "connector=one"): 1,
        ("fluence_masterqueue_dropped_messages_total", "connector=one"): 2,
        ("fluence_masterqueue_connected", "connector=one"): 1,
        ("fluence_masterqueue_connected", "connector=two"): 0,
    }


def test_pools_are_those_of_the_scrape_and_every_state_has_its_number() -> None:
    meter = Measured()
    figures = [
        PoolFigure("m", "a", "Active", 3.5),
        PoolFigure("m", "b", "Active", 4.0),
        PoolFigure("m", "c", "Waiting", None),
        PoolFigure("n", "a", "Silent", 99.0),
    ]
    meter.pools = lambda: figures
    assert samples(meter) == {
        ("fluence_masterqueue_pools", "masterqueue=m", "state=Active"): 2,
        ("fluence_masterqueue_pools", "masterqueue=m", "state=Silent"): 0,
        ("fluence_masterqueue_pools", "masterqueue=m", "state=Waiting"): 1,
        ("fluence_masterqueue_pools", "masterqueue=n", "state=Active"): 0,
        ("fluence_masterqueue_pools", "masterqueue=n", "state=Silent"): 1,
        ("fluence_masterqueue_pools", "masterqueue=n", "state=Waiting"): 0,
        ("fluence_masterqueue_last_message_seconds", "masterqueue=m", "pool=a"): 3.5,
        ("fluence_masterqueue_last_message_seconds", "masterqueue=m", "pool=b"): 4.0,
        ("fluence_masterqueue_last_message_seconds", "masterqueue=n", "pool=a"): 99.0,
    }
    figures.clear()
    assert samples(meter) == {}
