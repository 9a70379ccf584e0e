"""Unknown fields, wrong types and misspelt kinds in manifests that a person wrote."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from session_scheduler.cli import main
from session_scheduler.cluster.api_fields import FILE, ApiFields
from session_scheduler.cluster.field_validation import FieldValidation
from session_scheduler.cluster.manifests import load_manifests, read_manifests
from session_scheduler.errors import InputError

from ....tools.api_fields import custom, shipped_definitions

QUEUE = "fluence.flux-framework.org/v1alpha1"


def manifest(kind: str, api_version: str = "v1", **fields: Any) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "a"}, **fields}


def pod(**spec: Any) -> dict[str, Any]:
    return manifest("Pod", spec={"containers": [{"name": "c", "image": "i"}], **spec})


def messages(folder: Path, *manifests: dict[str, Any], name: str = "a.yaml") -> list[str]:
    """The errors of a file, without its path."""
    file = folder / name
    file.write_text("\n---\n".join(map(json.dumps, manifests)))  # JSON is YAML, too
    with pytest.raises(InputError) as raised:
        read_manifests([str(file)])
    return [message.removeprefix(f"{file}: ") for message in raised.value.messages]


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (pod(nodeselector={"disk": "ssd"}), "Pod a: spec.nodeselector: unknown field; did you mean nodeSelector?"),
        (pod(containers=[{"name": "c", "resources": {"request": {"cpu": 1}}}]),
         "Pod a: spec.containers[0].resources.request: unknown field; did you mean requests?"),
        (pod(containers=[{"name": "c", "tolerations": []}]),
         "Pod a: spec.containers[0].tolerations: unknown field: tolerations is a field of spec, so indent it less"),
        (pod(containers=[{"name": "c", "status": {}}]),
         "Pod a: spec.containers[0].status: unknown field: status is a field of the object, so indent it less"),
        (manifest("Pod", containers=[]),
         "Pod a: containers: unknown field: containers is a field of spec, so indent it more"),
        (pod(containers=[{"name": "c", "limits": {"cpu": 1}}]),
         "Pod a: spec.containers[0].limits: unknown field: limits is a field of spec.containers[0].resources, so "
         "indent it more"),
        (manifest("Deployment", "apps/v1", spec={"nodeSelector": {}}),
         "Deployment a: spec.nodeSelector: unknown field: nodeSelector is a field of spec.template.spec, so indent it "
         "more"),
        (manifest("Service", spec={"name": "s"}),
         "Service a: spec.name: unknown field; correct its name, or remove it"),
        (pod(os={"family": "linux"}), "Pod a: spec.os.family: unknown field; use one of name"),
        (pod(gpus=2), "Pod a: spec.gpus: unknown field; correct its name, or remove it"),
        (manifest("Node", status={"allocateable": {"cpu": 4}}),
         "Node a: status.allocateable: unknown field; did you mean allocatable?"),
        (manifest("Job", "batch/v1", spec={"paralelism": 2, "template": {}}),
         "Job a: spec.paralelism: unknown field; did you mean parallelism?"),
        (manifest("PodGroup", "scheduling.k8s.io/v1alpha2", spec={"schedulingPolicy": {"gang": {"mincount": 2}}}),
         "PodGroup a: spec.schedulingPolicy.gang.mincount: unknown field; did you mean minCount?"),
        (manifest("Queue", QUEUE, spec={"over_quota_weight": 2}),
         "Queue a: spec.over_quota_weight: unknown field; did you mean overQuotaWeight?"),
        (manifest("MasterQueue", "vk.io/v1", spec={"flavours": []}),
         "MasterQueue a: spec.flavours: unknown field; did you mean flavors?"),
    ],
)  # fmt: skip
def test_an_unknown_field_is_an_error_with_a_remedy(found: dict[str, Any], message: str, tmp_path: Path) -> None:
    assert messages(tmp_path, found) == [message]


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (pod(terminationGracePeriodSeconds="30"),
         "Pod a: spec.terminationGracePeriodSeconds: '30' is a string, not a whole number; write it without quotes"),
        (pod(hostPID="yes"), "Pod a: spec.hostPID: must be true or false, not 'yes'"),
        (pod(containers=[{"name": "c", "command": "sleep 5"}]),
         "Pod a: spec.containers[0].command: must be a list of strings, not 'sleep 5'"),
        (pod(containers=[{"name": "c", "env": [{"name": "A", "value": 1}]}]),
         'Pod a: spec.containers[0].env[0].value: 1 is not a string; quote it, as "1"'),
        (pod(volumes=[{"name": "v", "emptyDir": {"sizeLimit": "1 GiB"}}]),
         "Pod a: spec.volumes[0].emptyDir.sizeLimit: '1 GiB' is not a valid quantity; write a number with an optional "
         "suffix, such as 500m, 2 or 4Gi"),
        (pod(volumes=[{"name": "v", "emptyDir": {"sizeLimit": True}}]),
         "Pod a: spec.volumes[0].emptyDir.sizeLimit: must be a quantity such as 500m or 1Gi, not true"),
        (manifest("Pod", spec=pod()["spec"], status={"startTime": "today"}),
         "Pod a: status.startTime: 'today' is not a valid time; write it in RFC 3339, such as 2026-01-31T12:00:00Z"),
        (manifest("PodDisruptionBudget", "policy/v1", spec={"minAvailable": 1.5}),
         "PodDisruptionBudget a: spec.minAvailable: must be a whole number or a string, not 1.5"),
        (manifest("Deployment", "apps/v1", spec={"replicas": 2**31}),
         "Deployment a: spec.replicas: is a number with more than 32 bits; write a smaller one"),
        (manifest("Service", spec={"ports": {"port": 80}}),
         "Service a: spec.ports: must be a list of mappings, not a mapping"),
        (manifest("PersistentVolumeClaim", spec={"accessModes": "RWO"}),
         "PersistentVolumeClaim a: spec.accessModes: must be a list of strings, not 'RWO'"),
        (manifest("PersistentVolume", spec={"volumeMode": ["file"]}),
         "PersistentVolume a: spec.volumeMode: must be a string, not a list"),
    ],
)  # fmt: skip
def test_a_value_of_a_wrong_type_is_an_error(found: dict[str, Any], message: str, tmp_path: Path) -> None:
    assert messages(tmp_path, found) == [message]


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (pod(preemptionPolicy="never"),
         "Pod a: spec.preemptionPolicy: 'never' is not a valid value; did you mean Never?"),
        (pod(restartPolicy="Alway"), "Pod a: spec.restartPolicy: 'Alway' is not a valid value; did you mean Always?"),
        (manifest("PriorityClass", "scheduling.k8s.io/v1", value=1, preemptionPolicy="never"),
         "PriorityClass a: preemptionPolicy: 'never' is not a valid value; did you mean Never?"),
        (manifest("StorageClass", "storage.k8s.io/v1", provisioner="p", volumeBindingMode="waitForFirstConsumer"),
         "StorageClass a: volumeBindingMode: 'waitForFirstConsumer' is not a valid value; did you mean "
         "WaitForFirstConsumer?"),
        (manifest("PersistentVolumeClaim", spec={"accessModes": ["ReadWriteMany", "ReadWriteOnc"]}),
         "PersistentVolumeClaim a: spec.accessModes[1]: 'ReadWriteOnc' is not a valid value; did you mean "
         "ReadWriteOnce?"),
        (manifest("PersistentVolume", spec={"volumeMode": "file"}),
         "PersistentVolume a: spec.volumeMode: 'file' is not a valid value; use Filesystem or Block"),
    ],
)  # fmt: skip
def test_a_misspelt_value_is_an_error_with_a_suggestion(found: dict[str, Any], message: str, tmp_path: Path) -> None:
    assert messages(tmp_path, found) == [message]


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (manifest("Pdo"), "Pdo a: kind: v1 has no Pdo; did you mean Pod?"),
        (manifest("pod"), "pod a: kind: v1 has no pod; did you mean Pod?"),
        (manifest("Deploymnt"), "Deploymnt a: kind: v1 has no Deploymnt; did you mean Deployment of apps/v1?"),
        (manifest("PodGroups", "scheduling.x-k8s.io/v1alpha1"),
         "PodGroups a: kind: scheduling.x-k8s.io/v1alpha1 has no PodGroups; did you mean PodGroup?"),
    ],
)  # fmt: skip
def test_a_misspelt_kind_is_an_error_with_a_suggestion(found: dict[str, Any], message: str, tmp_path: Path) -> None:
    assert messages(tmp_path, found) == [message]


@pytest.mark.parametrize(
    "found",
    [
        manifest("ConfigMap", dat={}),
        manifest("VolumeSnapshot", "snapshot.storage.k8s.io/v1"),
        manifest("Widget", "example.com/v1"),
        manifest("Pdo", "example.com/v1"),
    ],
)
def test_kinds_that_no_command_reads_are_skipped(found: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(found))
    assert read_manifests([str(tmp_path)]).objects == ()


def test_every_invalid_field_of_every_file_is_reported_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    unnamed = {"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": {}}
    Path("a.yaml").write_text("\n---\n".join(map(json.dumps, (pod(nodename="n"), unnamed))))
    Path("b.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [
        pod(hostPID=1), manifest("Nod"), pod(tolerations=[{"kee": "a", "efect": "NoSchedule"}])
    ]}))  # fmt: skip
    for command in ("simulate", "explain", "status", "queues", "snapshot", "graph"):
        assert main([command, "a.yaml", "b.json"]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.splitlines() == [
            "fluence: a.yaml: Pod a: spec.nodename: unknown field; did you mean nodeName?",
            "fluence: a.yaml: Pod (document 2): metadata.name: is missing; name the object",
            "fluence: b.json: Pod a: spec.hostPID: must be true or false, not 1",
            "fluence: b.json: Nod a: kind: v1 has no Nod; did you mean Node?",
            "fluence: b.json: Pod a: spec.tolerations[0].kee: unknown field; did you mean key?",
            "fluence: b.json: Pod a: spec.tolerations[0].efect: unknown field; did you mean effect?",
        ]


def test_equal_fields_of_many_objects_are_validated_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    validated: list[str] = []
    problems = ApiFields.problems

    def counted(fields: ApiFields, api_version: str, kind: str, tree: dict[str, Any]) -> Iterator[tuple[str, str]]:
        validated.extend(tree)
        return problems(fields, api_version, kind, tree)

    monkeypatch.setattr(ApiFields, "problems", counted)
    pods = [{**pod(priority=7), "metadata": {"name": f"p{number}"}} for number in range(10)]
    file = tmp_path / "pods.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": pods}))
    assert len(read_manifests([str(file)]).pods) == 10
    assert validated.count("metadata") == 10
    assert validated.count("spec") == 1


def test_an_invalid_field_beside_valid_ones_of_other_objects_is_an_error(tmp_path: Path) -> None:
    pods = [pod(), {**pod(), "metadata": {"name": "b", "label": {}}}, {**pod(), "sepc": {}}, pod(priority="high")]
    listed = {"apiVersion": "v1", "kind": "List", "items": pods}
    assert messages(tmp_path, listed, name="pods.json") == [
        "Pod b: metadata.label: unknown field; did you mean labels?",
        "Pod a: sepc: unknown field; did you mean spec?",
        "Pod a: spec.priority: must be a whole number, not 'high'",
    ]


def test_validate_warn_logs_the_findings_and_ignore_reports_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.json").write_text(json.dumps(pod(nodeselector={}, schedulerName="fluence")))
    warning = "a.json: Pod a: spec.nodeselector: unknown field; did you mean nodeSelector?"
    for command in ("simulate", "explain", "status", "queues", "snapshot"):
        assert main([command, "a.json", "--validate", "warn"]) in (0, 1)
        assert warning in capsys.readouterr().err
        assert main([command, "a.json", "--validate", "ignore"]) in (0, 1)
        assert capsys.readouterr().err == ""


def test_files_of_added_nodes_are_validated_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.json").write_text(json.dumps(pod(schedulerName="fluence")))
    Path("n.json").write_text(json.dumps(manifest("Node", status={"alocatable": {}})))
    assert main(["simulate", "a.json", "--add-nodes", "n.json"]) == 2
    assert "n.json: Node a: status.alocatable: unknown field; did you mean allocatable?" in capsys.readouterr().err
    assert main(["simulate", "a.json", "--add-nodes", "n.json", "--validate", "ignore"]) == 1


@pytest.mark.parametrize("suffix", ["json", "yaml"])
@pytest.mark.parametrize(
    "metadata",
    [
        {"uid": "u"},
        {"resourceVersion": "7"},
        {"creationTimestamp": "2026-01-31T12:00:00Z"},
        {"managedFields": [{"manager": "kubectl"}]},
    ],
)
def test_an_object_that_an_api_server_wrote_may_have_fields_of_another_version(
    metadata: dict[str, Any], suffix: str, tmp_path: Path
) -> None:
    found = pod(fieldOfNextYear=1)
    items = [{**found, "metadata": {"name": name, **metadata, **({"uid": name} if "uid" in metadata else {})}}
             for name in "ab"]  # fmt: skip
    (tmp_path / f"a.{suffix}").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    assert len(load_manifests([str(tmp_path)]).pods) == 2


def test_the_null_creation_time_of_kubectls_dry_run_is_not_a_servers(tmp_path: Path) -> None:
    found = pod(nodeselector={})
    found["metadata"]["creationTimestamp"] = None
    assert len(messages(tmp_path, found)) == 1
    assert len(messages(tmp_path, {"apiVersion": "v1", "kind": "List", "items": [found]}, name="a.json")) == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2.0, 1.5])
def test_a_whole_number_may_have_a_point_as_kubectl_reads_it(value: float, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        f"apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: a}}\nspec: {{progressDeadlineSeconds: {value}}}"
        .replace(": nan", ": .nan").replace(": inf", ": .inf")
    )  # fmt: skip
    with pytest.raises(InputError) as raised:
        read_manifests([str(tmp_path)])
    assert ("progressDeadlineSeconds: must be a whole number" in str(raised.value)) is (value != 2.0)


def test_a_null_is_no_value(tmp_path: Path) -> None:
    found = pod(nodeselector=None, nodeSelector=None, containers=[{"name": "c", "ports": None}])
    (tmp_path / "a.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [found]}))
    assert len(read_manifests([str(tmp_path)], validate=FieldValidation.STRICT).pods) == 1


def test_the_table_has_the_definitions_of_deploy() -> None:
    shipped, part = json.loads(FILE.read_text()), custom(shipped_definitions())
    assert part["kinds"].keys() == {QUEUE, "vk.io/v1"}
    assert part["kinds"].items() <= shipped["kinds"].items(), "run `python -m tests.tools.api_fields`"
    assert part["types"].items() <= shipped["types"].items(), "run `python -m tests.tools.api_fields`"


def test_the_table_is_small() -> None:
    assert FILE.stat().st_size < 200_000
