"""What very many classes of pods in one namespace cost the pods of others: counted in attempts."""

from __future__ import annotations

from session_scheduler import hookimpl
from session_scheduler.testing import FakeCluster, pod

TURN = 256


class Attempts:
    """Notes the groups in the order of their attempts."""

    name = "attempts"

    def __init__(self) -> None:
        self.keys: list[str] = []

    @hookimpl
    def prefilter(self, session: object, group: object) -> None:
        self.keys.append(group.key.removeprefix("Pod "))  # type: ignore[attr-defined]


def attempts(cluster: FakeCluster) -> list[str]:
    """The attempts of one cycle on a full cluster."""
    noted = Attempts()
    cluster.nodes(1, cpu="1m")
    cluster.start(noted)
    cluster.run()
    return noted.keys


def test_others_are_attempted_after_the_first_classes_of_a_namespace() -> None:
    cluster = FakeCluster()
    cluster.add(*(pod(f"p{number}", namespace="busy", cpu=f"{number + 2}m") for number in range(TURN + 50)))
    cluster.add(*(pod(f"p{number}", namespace="calm", cpu="5m") for number in range(3)))
    found = attempts(cluster)
    calm = [found.index(f"calm/p{number}") for number in range(3)]
    assert calm == [TURN, TURN + 1, TURN + 2]
    assert len(found) == len(set(found)) == TURN + 53


def test_equal_pods_are_one_class_and_keep_their_order() -> None:
    cluster = FakeCluster()
    cluster.add(*(pod(f"p{number}", namespace="busy", cpu="2m") for number in range(TURN + 50)))
    cluster.add(pod("late", namespace="calm", cpu="5m"))
    assert attempts(cluster)[-1] == "calm/late"


def test_a_lower_priority_goes_after_all_of_the_higher_one() -> None:
    cluster = FakeCluster()
    cluster.add(*(pod(f"p{number}", namespace="busy", cpu=f"{number + 2}m", priority=5) for number in range(TURN + 50)))
    cluster.add(pod("same", namespace="calm", cpu="5m", priority=5), pod("low", namespace="calm", cpu="6m", priority=4))
    found = attempts(cluster)
    assert (found.index("calm/same"), found.index("calm/low")) == (TURN, TURN + 51)


def test_a_namespace_alone_keeps_its_order() -> None:
    cluster = FakeCluster()
    names = [f"p{number:03}" for number in range(TURN)]
    cluster.add(*(pod(name, namespace="busy", cpu=f"{number + 2}m") for number, name in enumerate(names)))
    cluster.add(pod("q0", namespace="busy", cpu="999m"), pod("q1", namespace="busy", cpu="2m"))
    assert attempts(cluster)[-2:] == ["busy/q0", "busy/q1"]
