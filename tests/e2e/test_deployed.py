"""deploy/ applied as it is to a real cluster: what the document promises, seen from inside real containers."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
import yaml

from ..tools.deploying import hooks
from .deployed import ALL, BACKEND, DEVICE_PLUGIN, EXAMPLES, SCHEDULER, WEBHOOK, Deployed, backend_of

BACKENDS = {"ibm_marrakesh": ("us-south", "heavy-hex"), "rigetti_cepheus": ("us-east-1", "square")}
"""What deploy/fluence-resources.yaml models: two backends of one qpu each, with region and connectivity."""


def test_all_that_is_applied_becomes_ready_and_stays(deployed: Deployed) -> None:
    deployed.wait_ready()
    for server in (SCHEDULER, WEBHOOK, DEVICE_PLUGIN):
        for pod in deployed.servers(server):
            (status,) = pod["status"]["containerStatuses"]
            assert status["restartCount"] == 0
    assert len(deployed.servers(SCHEDULER)) == len(deployed.servers(WEBHOOK)) == 2


def test_a_node_offers_a_thousand_of_each_type(deployed: Deployed) -> None:
    deployed.wait_offered(ALL)


def test_the_quantum_pod_prints_its_backend_and_its_attributes(deployed: Deployed) -> None:
    deployed.cluster.kubectl("apply", "-f", str(EXAMPLES / "quantum-pod.yaml"))
    (pod,) = deployed.wait_phase("Succeeded", "sampler")
    backend = backend_of(pod)
    region, connectivity = BACKENDS[backend]
    assert sorted(deployed.cluster.kubectl("logs", "sampler").split()) == [
        f"FLUXION_BACKEND={backend}", f"FLUXION_CONNECTIVITY={connectivity}", f"FLUXION_REGION={region}",
    ]  # fmt: skip
    assert pod["spec"]["nodeName"] == "n1"


def test_the_gang_goes_to_running_and_its_group_says_so(deployed: Deployed) -> None:
    deployed.cluster.kubectl("apply", "-f", str(EXAMPLES / "podgroup.yaml"))
    deployed.cluster.until(
        deployed.pods, lambda pods: len(pods) == 2 and all(pod["status"]["phase"] == "Running" for pod in pods)
    )
    deployed.cluster.until(  # the scheduler writes the condition after the binds
        lambda: deployed.cluster.get("podgroup.scheduling.k8s.io", "training").get("status", {}),
        lambda status: [each["status"] for each in status.get("conditions", ())] == ["True"],
    )
    table = deployed.cluster.kubectl("get", "podgroups.scheduling.k8s.io")
    assert "Scheduled" in table


def test_a_container_sees_what_it_was_given_by_scheduler_and_device_plugin(deployed: Deployed) -> None:
    deployed.create_pods("looks")
    (pod,) = deployed.wait_phase("Running", "looks")
    env = deployed.env("looks")
    assert env["FLUXION_BACKEND"] == backend_of(pod)
    assert env["FLUENCE_DEVICE_TYPE_QPU"] == "qpu"
    assert env["FLUENCE_DEVICES_QPU"].startswith("qpu-")


def test_an_ordinary_pod_of_ours_gets_empty_variables_and_one_of_others_none(deployed: Deployed) -> None:
    deployed.create_pods("plain", devices=0)
    deployed.wait_phase("Running", "plain")
    assert deployed.env("plain") == {"FLUXION_BACKEND": "", "FLUXION_CONNECTIVITY": "", "FLUXION_REGION": ""}
    deployed.apply(
        "{apiVersion: v1, kind: Pod, metadata: {name: foreign}, spec: {terminationGracePeriodSeconds: 0, containers:"
        " [{name: main, image: 'busybox:1.36', command: [sleep, '3600']}]}}"
    )
    deployed.wait_phase("Running", "foreign")
    assert deployed.env("foreign") == {}


def test_completion_gives_the_device_to_who_waits_for_it(deployed: Deployed) -> None:
    until_told = ("sh", "-c", "while [ ! -e /tmp/end ]; do sleep 0.1; done")
    deployed.create_pods("first", "second", command=until_told)
    first, second = deployed.wait_phase("Running", "first", "second")
    assert {backend_of(first), backend_of(second)} == set(BACKENDS)
    deployed.create_pods("third")
    deployed.wait_refused("third", "qpu")
    assert deployed.metrics(deployed.leader())["fluence_held_pods"] == 2
    deployed.cluster.kubectl("exec", "first", "--", "touch", "/tmp/end")
    (third,) = deployed.wait_phase("Running", "third")
    assert backend_of(third) == backend_of(first)
    assert deployed.pod("first")["status"]["phase"] == "Succeeded"
    assert deployed.metrics(deployed.leader())["fluence_held_pods"] == 2


def test_the_pod_of_helm_test_succeeds_beside_a_scheduler_that_is_ready(deployed: Deployed) -> None:
    """There is neither DNS nor kube-proxy here, so a replica's address stands in for the Service's name."""
    _, pod = hooks()
    url = pod["spec"]["containers"][0]["args"][-1]
    (address, *_) = [each["status"]["podIP"] for each in deployed.servers(SCHEDULER)]
    pod["spec"]["hostAliases"] = [{"ip": address, "hostnames": [urlsplit(url).hostname]}]
    pod["metadata"]["namespace"] = "default"
    deployed.apply(yaml.safe_dump(pod))
    (ended,) = deployed.wait_phase("Succeeded", "fluence-test")
    assert ended["spec"]["schedulerName"] == "fluence"
    assert deployed.cluster.kubectl("logs", "fluence-test") == f"{url} ok\n"


def test_nothing_is_written_by_hand_where_only_fluence_writes(deployed: Deployed) -> None:
    deployed.create_pods("plain", devices=0)
    deployed.wait_phase("Running", "plain")
    with pytest.raises(AssertionError, match="only fluence writes these annotations"):
        deployed.cluster.kubectl("annotate", "pod", "plain", f"{BACKEND}=mine")
