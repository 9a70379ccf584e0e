"""What is measured of MasterQueues, as Prometheus takes it."""

from __future__ import annotations

from typing import Any

from fluence_plugins.master_queue.metrics import MasterQueueMetrics, PoolSample


def samples(meter: MasterQueueMetrics, **now: Any) -> dict[tuple[str, ...], float]:
    return {
        (one.name, *(f"{name}={value}" for name, value in one.labels.items())): one.value
        for family in meter.families(**now)
        for one in family.samples
    }


def test_there_are_no_samples_before_the_first_event() -> None:
    assert samples(MasterQueueMetrics()) == {}
    assert all(family.documentation for family in MasterQueueMetrics().families())


def test_every_event_is_counted_by_its_labels() -> None:
    meter = MasterQueueMetrics()
    for result in ("taken", "taken", "refused"):
        meter.message("interlink.resources", result)
    meter.applied("ClusterQueue", "created")
    meter.reconnected("one")
    meter.dropped("one")
    meter.dropped("one")
    assert samples(meter, connected={"one": True, "two": False}) == {
        ("fluence_masterqueue_messages_total", "subject=interlink.resources", "result=taken"): 2,
        ("fluence_masterqueue_messages_total", "subject=interlink.resources", "result=refused"): 1,
        ("fluence_masterqueue_applies_total", "kind=ClusterQueue", "result=created"): 1,
        ("fluence_masterqueue_reconnects_total", "connector=one"): 1,
        ("fluence_masterqueue_dropped_messages_total", "connector=one"): 2,
        ("fluence_masterqueue_connected", "connector=one"): 1,
        ("fluence_masterqueue_connected", "connector=two"): 0,
    }


def test_each_scrape_counts_the_current_pools_by_state() -> None:
    meter = MasterQueueMetrics()
    figures = [
        PoolSample("m", "a", "Active", 3.5),
        PoolSample("m", "b", "Active", 4.0),
        PoolSample("m", "c", "Waiting", None),
        PoolSample("n", "a", "Silent", 99.0),
    ]
    assert samples(meter, pools=figures) == {
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
