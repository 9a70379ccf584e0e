"""Where the API server has objects of a kind."""

import pytest

from session_scheduler.cluster.kube_kinds import resource_of
from session_scheduler.model.workload_objects import Job, Workload


@pytest.mark.parametrize(
    ("api_version", "path"),
    [
        ("", "apis/scheduling.k8s.io/v1alpha2/namespaces/physics/workloads/w"),
        ("scheduling.k8s.io/v1beta1", "apis/scheduling.k8s.io/v1beta1/namespaces/physics/workloads/w"),
    ],
)
def test_a_workload_is_read_in_the_version_that_is_asked_for(api_version: str, path: str) -> None:
    assert resource_of(Workload, api_version).path("physics", "w").lstrip("/") == path


def test_a_kind_of_one_version_is_read_in_that() -> None:
    assert resource_of(Job, "batch/v2") is resource_of(Job)
