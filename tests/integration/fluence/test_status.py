"""`fluence status` reports the devices and jobids that the plugin `fluence` has allocated."""

from __future__ import annotations

from fluence_plugins.fluence.arguments import FluenceArguments
from fluence_plugins.fluence.plugin import FluencePlugin
from session_scheduler.offline.status import status_of
from session_scheduler.testing import FakeCluster, node, pod

QPU = "fluxion.flux-framework.org/qpu"


def test_the_status_has_the_devices_and_jobids_of_each_pod() -> None:
    cluster = FakeCluster()
    cluster.add(node("n1", offers={QPU: 99}), pod("p", requests={QPU: 1}), pod("plain"), pod("late", requests={QPU: 9}))
    cluster.run(FluencePlugin(FluenceArguments(resources_text="resources: [{type: qpu, name: aurora}]")))
    reported = status_of(cluster.scheduler)
    held = {one["name"]: one for one in reported["held"]}
    assert len(held["p"]["devices"]) == 1
    assert "aurora" in held["p"]["devices"][0]
    assert held["p"]["jobid"].replace(",", "").isdecimal()
    assert held["p"]["jobid"] != held["plain"]["jobid"]
    assert held["plain"]["devices"] == []
    (late,) = reported["waiting"]
    refused = "the pod requests 9 qpus, and 0 of 1 is free"
    assert late["reason"] == f"{refused}. preemption: No preemption victims found for incoming preemptor"
