"""Schedulers that die, and two that lead for a moment, while device pods and gangs are placed on a real node."""

from __future__ import annotations

import signal

from .deployed import EXAMPLES, SCHEDULER, SYSTEM, Deployed, backend_of

NAMES = tuple(f"wants-{number}" for number in range(5))


def given(deployed: Deployed) -> dict[str, str]:
    """Which pod has which backend."""
    return {pod["metadata"]["name"]: backend for pod in deployed.pods() if (backend := backend_of(pod))}


def check_each_device_has_one_pod(deployed: Deployed) -> None:
    """Both backends are given, each once, and who has one runs on it."""
    held = deployed.cluster.until(lambda: given(deployed), lambda found: len(found) >= 2)
    assert sorted(held.values()) == ["ibm_marrakesh", "rigetti_cepheus"]
    deployed.wait_phase("Running", *held)
    assert {name: deployed.env(name)["FLUXION_BACKEND"] for name in held} == held


def test_a_killed_leader_is_followed_by_one_that_knows_who_has_what(deployed: Deployed) -> None:
    leader = deployed.leader()
    deployed.create_pods("has")
    deployed.wait_phase("Running", "has")
    deployed.create_pods(*NAMES)
    deployed.signal(leader, signal.SIGKILL)
    check_each_device_has_one_pod(deployed)
    has = given(deployed)["has"]
    deployed.cluster.kubectl("delete", "pod", "has", "--wait=false")
    held = deployed.cluster.until(
        lambda: given(deployed), lambda found: "has" not in found and len(found) == 2, 60
    )  # fmt: skip
    assert has in held.values()
    deployed.wait_ready(SCHEDULER)


def test_two_leaders_for_a_moment_give_nothing_twice(deployed: Deployed) -> None:
    paused = deployed.leader()
    deployed.create_pods(*NAMES)
    deployed.signal(paused, signal.SIGSTOP)
    try:
        deployed.cluster.kubectl("create", "-f", str(EXAMPLES / "podgroup.yaml"))
        deployed.cluster.until(
            lambda: deployed.cluster.get("lease", SCHEDULER, "-n", SYSTEM)["spec"]["holderIdentity"],
            lambda holder: not holder.startswith(paused["metadata"]["name"]),
        )
    finally:
        deployed.signal(paused, signal.SIGCONT)  # for a moment it believes to lead
    check_each_device_has_one_pod(deployed)
    deployed.cluster.until(
        deployed.pods,
        lambda pods: sum(pod["metadata"]["name"].startswith("training") and pod["status"]["phase"] == "Running"
                         for pod in pods) == 2,
    )  # fmt: skip
    deployed.wait_ready(SCHEDULER)
    check_each_device_has_one_pod(deployed)


def test_a_scheduler_that_is_replaced_by_a_rollout_leaves_no_gap(deployed: Deployed) -> None:
    deployed.create_pods("has")
    deployed.wait_phase("Running", "has")
    before = {pod["metadata"]["name"] for pod in deployed.servers(SCHEDULER)}
    deployed.cluster.kubectl("rollout", "restart", f"deployment/{SCHEDULER}", "-n", SYSTEM)
    deployed.create_pods(*NAMES)
    check_each_device_has_one_pod(deployed)
    deployed.wait_ready(SCHEDULER)
    assert deployed.leader()["metadata"]["name"] not in before
