"""Paths of each kind in the API."""

from typing import get_args

import pytest

from session_scheduler.cluster.kube_kinds import resource_of
from session_scheduler.model.objects import PodGroup, PortObject
from session_scheduler.model.workload_objects import Job, Workload


@pytest.mark.parametrize(
    ("api_version", "path"),
    [
        ("", "apis/scheduling.k8s.io/v1alpha2/namespaces/physics/workloads/w"),
        ("scheduling.k8s.io/v1beta1", "apis/scheduling.k8s.io/v1beta1/namespaces/physics/workloads/w"),
    ],
)
def test_a_workload_has_the_path_of_the_requested_version(api_version: str, path: str) -> None:
    assert resource_of(Workload, api_version).path("physics", "w").lstrip("/") == path


def test_a_kind_with_one_version_has_its_path() -> None:
    assert resource_of(Job, "batch/v2") is resource_of(Job)


PLACES = """
v1: pods nodes* namespaces* services replicationcontrollers configmaps persistentvolumeclaims persistentvolumes*
apps/v1: replicasets statefulsets
batch/v1: jobs
jobset.x-k8s.io/v1alpha2: jobsets
leaderworkerset.x-k8s.io/v1: leaderworkersets
scheduling.k8s.io/v1alpha2: workloads
scheduling.k8s.io/v1: priorityclasses*
coordination.k8s.io/v1: leases
storage.k8s.io/v1: storageclasses* csinodes* csidrivers* csistoragecapacities volumeattachments*
policy/v1: poddisruptionbudgets
resource.k8s.io/v1: deviceclasses* resourceslices* resourceclaims
resource.k8s.io/v1beta2: devicetaintrules*
fluence.flux-framework.org/v1alpha1: queues*
topology.node.k8s.io/v1alpha2: noderesourcetopologies*
"""
"""The resources of each API version; a star marks cluster-scoped ones."""


def test_each_kind_has_the_api_servers_path() -> None:
    expected = set()
    for line in PLACES.strip().splitlines():
        version, _, plurals = line.partition(": ")
        for plural in plurals.split():
            api, namespace = "apis" if "/" in version else "api", "" if plural.endswith("*") else "namespaces/physics/"
            expected.add(f"{api}/{version}/{namespace}{plural.rstrip('*')}/it")
    kinds = [kind for kind in get_args(PortObject) if kind is not PodGroup]
    assert {resource_of(kind).path("physics", "it").lstrip("/") for kind in kinds} == expected
