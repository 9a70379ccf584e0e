"""Workloads of scheduling.k8s.io in manifests: their templates, the PodGroups made from them, and Jobs with groups."""

from __future__ import annotations

from typing import Any

import pytest

from .loading import load, refusal, template, workload

GANG = {"gang": {"minCount": 3}}


def group_workload(*templates: dict[str, Any], version: str = "v1alpha2", name: str = "w") -> dict[str, Any]:
    return {"apiVersion": f"scheduling.k8s.io/{version}", "kind": "Workload", "metadata": {"name": name},
            "spec": {"podGroupTemplates": list(templates)}}  # fmt: skip


def made_from(workload_name: str, template_name: str, version: str = "v1alpha2", **metadata: Any) -> dict[str, Any]:
    names = {"workloadName": workload_name, "podGroupTemplateName": template_name}
    reference: dict[str, Any] = {"podGroupTemplateRef": {"workload": names}}
    if version == "v1beta1":
        reference = {"workloadRef": {"workloadName": workload_name, "templateName": template_name}}
    return {"apiVersion": f"scheduling.k8s.io/{version}", "kind": "PodGroup", "metadata": {"name": "g", **metadata},
            "spec": {"schedulingPolicy": GANG, **reference}}  # fmt: skip


TEMPLATE = {"name": "t", "schedulingPolicy": GANG}


@pytest.mark.parametrize("version", ["v1alpha2", "v1beta1"])
def test_a_group_is_accepted_if_its_template_exists(version: str) -> None:
    loaded = load(made_from("w", "t", version), group_workload(TEMPLATE, version=version))
    (group,) = loaded.pod_groups
    assert (group.min_count, group.api_version) == (3, f"scheduling.k8s.io/{version}")
    assert group.spec.pod_group_template_ref is not None
    assert loaded.left_out == {}


@pytest.mark.parametrize("version", ["v1alpha2", "v1beta1"])
def test_a_group_whose_template_is_missing_is_rejected_as_by_the_api_server(version: str) -> None:
    text = refusal(made_from("w", "other", version), group_workload(TEMPLATE))
    assert "spec.podGroupTemplateRef.workload.podGroupTemplateName: Workload 'w' has no template 'other'" in text
    text = refusal(made_from("w", "t", version), group_workload(TEMPLATE, name="another"))
    assert "spec.podGroupTemplateRef.workload.workloadName: namespace default has no Workload 'w'" in text


def test_a_saved_group_may_have_lost_its_template() -> None:
    assert len(load(made_from("w", "t", uid="u1")).pod_groups) == 1


@pytest.mark.parametrize(
    ("templates", "field", "problem"),
    [
        ([], "spec.podGroupTemplates", "use 1 to 8"),
        ([{**TEMPLATE, "name": f"t{number}"} for number in range(9)], "spec.podGroupTemplates", "has 9 entries"),
        ([TEMPLATE, TEMPLATE], "spec.podGroupTemplates[1].name", "is used twice"),
        ([{**TEMPLATE, "name": "No"}], "spec.podGroupTemplates[0].name", "is not a valid name"),
        ([{"name": "t"}], "spec.podGroupTemplates[0].schedulingPolicy", "exactly one of gang and basic"),
        ([{"name": "t", "schedulingPolicy": {"gang": {"minCount": 0}}}],
         "spec.podGroupTemplates[0].schedulingPolicy.gang.minCount", "must be at least 1, not 0"),
        ([{**TEMPLATE, "schedulingConstraints": {"topology": [{"key": "a b"}]}}],
         "spec.podGroupTemplates[0].schedulingConstraints.topology[0].key", "is not a valid key"),
    ],
)  # fmt: skip
def test_the_error_for_an_invalid_workload_names_the_field(
    templates: list[dict[str, Any]], field: str, problem: str
) -> None:
    text = refusal(group_workload(*templates))
    assert f": {field}: " in text
    assert problem in text


def test_the_error_for_an_invalid_group_of_a_newer_version_names_the_field() -> None:
    manifest = made_from("w", "t", "v1beta1")
    manifest["spec"]["schedulingPolicy"] = {"gang": {"minCount": "three"}}
    assert ": spec: " in refusal(manifest)
    assert "schedulingConstraints.topology[0].key" in refusal(
        {**manifest, "spec": {"schedulingPolicy": GANG, "schedulingConstraints": {"topology": [{"key": "!"}]}}}
    )


# ---------------------------------------------------------------------- Jobs


def job(**spec: Any) -> dict[str, Any]:
    fields = {"parallelism": 3, "completions": 3, "completionMode": "Indexed", **spec}
    return workload("Job", {"template": template(restartPolicy="Never"), **fields}, metadata={"uid": "job-1"})


def of_job(name: str = "g", uid: str = "job-1") -> dict[str, Any]:
    """Return a PodGroup as the Job controller creates it."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "w", "uid": uid, "controller": True}
    return {"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup",
            "metadata": {"name": name, "uid": f"u-{name}", "ownerReferences": [owner]},
            "spec": {"schedulingPolicy": GANG}}  # fmt: skip


def groups_of(*documents: dict[str, Any]) -> list[str | None]:
    found = [pod.spec.scheduling_group for pod in load(*documents).pods]
    return [group.pod_group_name if group is not None else None for group in found]


def test_missing_pods_of_a_job_join_the_jobs_group() -> None:
    assert groups_of(job(), of_job()) == ["g"] * 3


@pytest.mark.parametrize(
    "documents",
    [
        (job(),),
        (job(), of_job(uid="job-2")),
        (job(), of_job("g"), of_job("h")),
        (job(completions=4), of_job()),
        (job(completionMode="NonIndexed"), of_job()),
        (job(parallelism=1, completions=1), of_job()),
    ],
)
def test_pods_of_a_job_without_a_gang_join_no_group(documents: Any) -> None:
    assert set(groups_of(*documents)) == {None}


def test_the_pods_of_a_job_that_names_a_group_itself_stay_in_it() -> None:
    own = job(template=template(restartPolicy="Never", schedulingGroup={"podGroupName": "mine"}))
    assert groups_of(own, of_job()) == ["mine"] * 3
