"""The webhook handler `slurm-bridge`: mutation of new pods, and validation of changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fluence_plugins.env_injection.handlers import AdmissionRequest, HandlerSettings, Refusal, load_handlers
from fluence_plugins.slurm_bridge.admission import SlurmBridgeHandler
from fluence_plugins.slurm_bridge.names import (
    CORES_ANNOTATION,
    FINALIZER,
    GRES_ANNOTATION,
    JOBID_LABEL,
    NODE_ANNOTATION,
    SCHEDULER_NAME,
)

from ....tools.admitting import Object, patched, settings

ACCOUNT = "system:serviceaccount:kube-system:fluence"
TOLERATION = {
    "key": "slinky.slurm.net/managed-node",
    "operator": "Equal",
    "value": "slurm-bridge-scheduler",
    "effect": "NoExecute",
}
LABEL, ANNOTATION = {"labels": {JOBID_LABEL: "7"}}, {"annotations": {NODE_ANNOTATION: "n1"}}
CORES: Object = {"annotations": {CORES_ANNOTATION: "0-3"}}
GRES: Object = {"annotations": {GRES_ANNOTATION: "gpu(IDX:0)"}}
FINALIZED: Object = {"finalizers": ["example.com/other", FINALIZER]}
MARKS = pytest.mark.parametrize(
    "mark", [LABEL, ANNOTATION, CORES, GRES, FINALIZED], ids=["job", "node", "cores", "gres", "finalizer"]
)


def handler(**given: Any) -> SlurmBridgeHandler:
    return SlurmBridgeHandler(replace(settings(), **({"scheduler_users": frozenset({ACCOUNT})} | given)))


def pod(scheduler: str | None = "default-scheduler", metadata: Object | None = None, **spec: Any) -> Object:
    named = {} if scheduler is None else {"schedulerName": scheduler}
    return {"metadata": metadata or {}, "spec": {"containers": [{"name": "c"}]} | named | spec}


def bridged(metadata: Object | None = None, phase: str = "Pending") -> Object:
    return pod(SCHEDULER_NAME, metadata) | {"status": {"phase": phase}}


def request(operation: str = "CREATE", *, namespace: str = "slurm", user: str = "alice", old: Any = None) -> Any:
    return AdmissionRequest(
        uid="1", operation=operation, namespace=namespace, name="p", dry_run=False, user=user, old=old
    )


def created(whole: Object, by: SlurmBridgeHandler | None = None, **asked: Any) -> Object:
    """The stored pod. Checks that a second call changes nothing."""
    by = by or handler()
    answer = by.mutate(whole, request(**asked))
    assert not isinstance(answer, Refusal), answer
    made = patched(whole, answer)
    assert by.mutate(made, request(**asked)) == []
    return made


def change(old: Object, new: Object, user: str = "alice", by: SlurmBridgeHandler | None = None) -> str:
    """Why the handler rejects the change; empty if it does not."""
    answer = (by or handler()).mutate(new, request("UPDATE", user=user, old=old))
    assert isinstance(answer, Refusal) or answer == []
    return answer.message if isinstance(answer, Refusal) else ""


# ---------------------------------------------------------------------- new pods


@pytest.mark.parametrize("scheduler", ["default-scheduler", "", None])
def test_a_pod_for_the_default_scheduler_becomes_the_bridges_and_tolerates_its_nodes(scheduler: str | None) -> None:
    spec = created(pod(scheduler))["spec"]
    assert (spec["schedulerName"], spec["tolerations"]) == (SCHEDULER_NAME, [TOLERATION])


def test_a_pod_that_names_the_bridge_tolerates_its_nodes_wherever_it_is() -> None:
    by = handler(managed_namespaces=frozenset({"slurm"}))
    assert created(pod(SCHEDULER_NAME), by, namespace="elsewhere")["spec"]["tolerations"] == [TOLERATION]


def test_a_pod_that_names_another_scheduler_is_left_alone() -> None:
    whole = pod("fluence", LABEL)
    assert created(whole) == whole


def test_only_default_scheduler_pods_of_listed_namespaces_are_changed() -> None:
    by = handler(managed_namespaces=frozenset({"slurm", "batch"}))
    assert created(pod(), by, namespace="batch")["spec"]["schedulerName"] == SCHEDULER_NAME
    assert created(pod(), by, namespace="elsewhere") == pod()


def test_the_schedulers_name_is_a_setting() -> None:
    spec = created(pod(), handler(slurm_scheduler_name="hpc"))["spec"]
    assert (spec["schedulerName"], spec["tolerations"]) == ("hpc", [TOLERATION | {"value": "hpc"}])
    assert created(pod(SCHEDULER_NAME), handler(slurm_scheduler_name="hpc")) == pod(SCHEDULER_NAME)


@pytest.mark.parametrize(
    ("present", "added"),
    [
        ([TOLERATION], []),
        ([{key: said for key, said in TOLERATION.items() if key != "operator"}], []),
        ([{"operator": "Exists"}], [TOLERATION]),
        ([TOLERATION | {"value": "other"}], [TOLERATION]),
        ([TOLERATION | {"tolerationSeconds": 60}], [TOLERATION]),
    ],
)
def test_other_tolerations_stay_and_one_that_is_there_is_not_added(present: list[Object], added: list[Object]) -> None:
    assert created(pod(tolerations=present))["spec"]["tolerations"] == present + added


def test_slurm_also_places_a_pod_whose_creator_set_a_node() -> None:
    assert "nodeName" not in created(pod(nodeName="n1"))["spec"]
    assert created(pod("other", nodeName="n1"))["spec"]["nodeName"] == "n1"


def test_mirror_pods_are_not_changed() -> None:
    mirror = pod(nodeName="n1")
    assert created(mirror, user="system:node:n1") == mirror


@MARKS
@pytest.mark.parametrize("scheduler", ["default-scheduler", SCHEDULER_NAME])
def test_a_new_pod_with_a_mark_is_rejected_and_the_mark_named(scheduler: str, mark: Object) -> None:
    answer = handler().mutate(pod(scheduler, mark), request(user=ACCOUNT))
    assert isinstance(answer, Refusal)
    assert answer.code == 403
    assert answer.message.endswith(": only slurm-bridge-scheduler sets these fields; create the pod without them")
    assert f"metadata.{next(iter(mark))}[" in answer.message


def test_other_labels_annotations_and_finalizers_are_allowed() -> None:
    metadata = {"labels": {"a": "b"}, "annotations": {"slurmjob.slinky.slurm.net/qos": "high"}, "finalizers": ["c/d"]}
    assert created(pod(metadata=metadata))["metadata"] == metadata


@pytest.mark.parametrize("whole", [
    {}, {"spec": None}, {"spec": []}, pod() | {"metadata": None}, pod() | {"metadata": "odd"},
    pod(metadata={"labels": 1, "annotations": ["a"], "finalizers": "f"}), pod(tolerations="odd"), pod(tolerations=[1]),
    pod(schedulerName=7), pod(schedulerName=["a"]),
])  # fmt: skip
def test_invalid_pods_are_left_to_the_api_server(whole: Object) -> None:
    created(whole)
    assert change(whole, whole) == ""
    assert change(bridged(), whole) == ""


# ---------------------------------------------------------------------- changes


@MARKS
@pytest.mark.parametrize("phase", ["Pending", "Running", "Succeeded"])
def test_only_the_scheduler_makes_changes_and_removes_marks(mark: Object, phase: str) -> None:
    for old, new in ((None, mark), (mark, None)):
        assert f"metadata.{next(iter(mark))}[" in change(bridged(old, phase), bridged(new, phase))
        assert change(bridged(old, phase), bridged(new, phase), user=ACCOUNT) == ""


def test_another_job_or_node_is_a_change_and_every_mark_that_changes_is_named() -> None:
    old = bridged(LABEL | ANNOTATION)
    new = bridged({"labels": {JOBID_LABEL: "8"}, "annotations": {NODE_ANNOTATION: "n2"}})
    assert change(old, new) == (
        f"metadata.labels[{JOBID_LABEL}], metadata.annotations[{NODE_ANNOTATION}]: "
        "only slurm-bridge-scheduler may change these fields of its pods; leave them unchanged"
    )


def test_other_fields_can_be_changed() -> None:
    marks = {"labels": {JOBID_LABEL: "7"}, "annotations": {NODE_ANNOTATION: "n1"}, "finalizers": [FINALIZER]}
    new = {"labels": {JOBID_LABEL: "7", "a": "b"}, "annotations": {NODE_ANNOTATION: "n1", "c": "d"},
           "finalizers": [FINALIZER, "e/f"]}  # fmt: skip
    assert change(bridged(marks, "Running"), bridged(new, "Running")) == ""


def test_pods_of_other_schedulers_can_have_marks() -> None:
    assert change(pod(), pod(metadata=LABEL)) == ""


def test_a_user_can_remove_the_finalizer_of_a_deleted_pod() -> None:
    gone = {"deletionTimestamp": "2026-06-01T00:00:00Z"}
    old = bridged(gone | LABEL | FINALIZED, "Running")
    assert change(old, bridged(gone | LABEL, "Running")) == ""
    assert JOBID_LABEL in change(old, bridged(gone, "Running"))
    assert FINALIZER in change(bridged(gone), bridged(gone | FINALIZED))


def test_without_the_schedulers_account_only_marks_of_running_pods_are_protected() -> None:
    by = handler(scheduler_users=frozenset())
    for mark in (LABEL, ANNOTATION, CORES, GRES):
        for old, new in ((None, mark), (mark, None)):
            assert change(bridged(old), bridged(new), by=by) == ""
            assert change(bridged(old, "Running"), bridged(new, "Running"), by=by) != ""
    assert change(bridged(FINALIZED, "Running"), bridged(None, "Running"), by=by) == ""


# ---------------------------------------------------------------------- registration


def test_the_handler_is_registered_with_a_summary() -> None:
    given: HandlerSettings = replace(
        settings(), scheduler_users=frozenset({ACCOUNT}), managed_namespaces=frozenset({"b", "a"})
    )
    found = load_handlers(["slurm-bridge"], given)["slurm-bridge"]
    assert isinstance(found, SlurmBridgeHandler)
    assert found.contract() == (
        "slurm-bridge: assigns pods of default-scheduler in a, b to slurm-bridge-scheduler; "
        f"only {ACCOUNT} may change the marks of its pods"
    )
    assert handler(scheduler_users=frozenset(), managed_namespaces=frozenset()).contract() == (
        "slurm-bridge: assigns pods of default-scheduler in all namespaces of the webhook to slurm-bridge-scheduler; "
        "no scheduler users are configured: any user may change the marks of pods that are not running"
    )
