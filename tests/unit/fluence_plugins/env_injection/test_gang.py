"""What the handler `gang` writes into the templates of Jobs and Deployments."""

from __future__ import annotations

from typing import Any

import pytest

from fluence_plugins.env_injection.gang import GangHandler
from fluence_plugins.env_injection.handlers import Refusal

from ....tools.admitting import Object, admitted, request, settings

LABEL = "fluence.flux-framework.org/group"
SIZE = "fluence.flux-framework.org/group-size"


def workload(kind: str = "Job", *, labels: Any = None, annotations: Any = None, **spec: Any) -> Object:
    metadata = {"labels": {LABEL: "mine"} if labels is None else labels}
    if annotations is not None:
        metadata["annotations"] = annotations
    template = {"metadata": metadata, "spec": {"schedulerName": "fluence", "containers": [{"name": "c"}]}}
    version = "batch/v1" if kind == "Job" else "apps/v1"
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "w"}, "spec": {"template": template, **spec}}


def size_of(made: Object, operation: str = "CREATE") -> str | None:
    answer = admitted(made, [GangHandler(settings())], operation)
    assert not isinstance(answer, Refusal), answer
    size: str | None = answer["spec"]["template"]["metadata"].get("annotations", {}).get(SIZE)
    return size


def refusal(made: Object) -> str:
    answer = admitted(made, [GangHandler(settings())])
    assert isinstance(answer, Refusal), answer
    return answer.message


@pytest.mark.parametrize(
    ("spec", "size"),
    [
        ({}, "1"),
        ({"parallelism": 4}, "4"),
        ({"parallelism": 4, "completions": 4, "completionMode": "Indexed"}, "4"),
        ({"parallelism": 8, "completions": 3}, "3"),
        ({"parallelism": 2, "completions": 9}, "2"),
    ],
)
def test_a_jobs_gang_has_the_size_of_its_parallel_pods(spec: dict[str, Any], size: str) -> None:
    assert size_of(workload(**spec)) == size


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
def test_a_deployments_gang_has_the_size_of_its_replicas(operation: str) -> None:
    assert size_of(workload("Deployment", replicas=5), operation) == "5"
    assert size_of(workload("Deployment"), operation) == "1"


def test_an_existing_size_is_kept_so_that_scaling_starts_no_rollout() -> None:
    assert size_of(workload("Deployment", replicas=5, annotations={SIZE: "3"}), "UPDATE") == "3"
    assert size_of(workload(parallelism=5, annotations={SIZE: "2", "other": "x"})) == "2"


def test_a_jobs_template_is_not_changed_later() -> None:
    assert size_of(workload(parallelism=3), "UPDATE") is None


def test_objects_without_a_group_or_of_another_scheduler_are_not_changed() -> None:
    assert size_of(workload(labels={}, parallelism=3)) is None
    assert size_of(workload(labels={LABEL: ""}, parallelism=3)) is None
    other = workload(parallelism=3)
    other["spec"]["template"]["spec"]["schedulerName"] = "default-scheduler"
    assert size_of(other) is None


@pytest.mark.parametrize("text", ["0", "-1", "two", "1e3", "", "9" * 50])
def test_an_invalid_size_is_rejected(text: str) -> None:
    answer = refusal(workload(parallelism=3, annotations={SIZE: text}))
    assert f"spec.template.metadata.annotations[{SIZE}]" in answer
    assert len(answer) < 300


@pytest.mark.parametrize(
    ("kind", "spec", "field"),
    [
        ("Job", {"parallelism": 0}, "spec.parallelism"),
        ("Job", {"parallelism": "3"}, "spec.parallelism"),
        ("Job", {"parallelism": True}, "spec.parallelism"),
        ("Job", {"parallelism": 10**9}, "spec.parallelism"),
        ("Deployment", {"replicas": 0}, "spec.replicas"),
    ],
)
def test_an_object_of_unknown_size_needs_the_annotation(kind: str, spec: dict[str, Any], field: str) -> None:
    answer = refusal(workload(kind, **spec))
    assert field in answer
    assert SIZE in answer


def test_malformed_objects_are_allowed_and_rejected_by_the_api_server() -> None:
    gang = GangHandler(settings())
    for broken in ({}, {"spec": 3}, {"spec": {"template": 3}}, {"spec": {"template": {"spec": {"containers": 3}}}},
                   workload(labels=[1]), workload(labels={LABEL: 3}), workload(annotations={SIZE: 3})):  # fmt: skip
        assert not gang.mutate(broken, request("Job"))
