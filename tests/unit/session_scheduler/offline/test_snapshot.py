"""Snapshots: what is in them, what is made of them, and how wrong ones are refused."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from session_scheduler.cli import main
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.cluster.saved_state import snapshot_text
from session_scheduler.config.settings import SchedulerConfig, parse_config
from session_scheduler.engine.scheduler import KINDS
from session_scheduler.errors import InputError
from session_scheduler.model.objects import ConfigMap, Node, ObjectMeta, Pod
from session_scheduler.offline.simulate import simulate
from session_scheduler.offline.snapshot import snapshot
from session_scheduler.offline.state import ClusterState, read_state
from session_scheduler.registry.registry import register_plugin_builder

CLUSTER = """
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {zone: a}}
status: {allocatable: {cpu: "2", memory: 8Gi, pods: "10"}}
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: high}
value: 7
---
apiVersion: v1
kind: Pod
metadata:
  name: running
  namespace: a
  annotations: {kubectl.kubernetes.io/last-applied-configuration: "PASSWORD=hunter2", kept: "yes"}
spec:
  nodeName: n1
  schedulerName: fluence
  containers: [{name: c, image: i, resources: {requests: {cpu: 500m}}, env: [{name: PASSWORD, value: hunter2}]}]
---
apiVersion: v1
kind: Secret
metadata: {name: s, namespace: a}
stringData: {password: hunter2}
---
apiVersion: scheduling.k8s.io/v1alpha2
kind: PodGroup
metadata: {name: g, namespace: a}
spec: {schedulingPolicy: {gang: {minCount: 2}}}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: NAME, namespace: a}
spec:
  schedulerName: fluence
  priorityClassName: high
  containers: [{name: c, image: i, resources: {requests: {cpu: "1"}}}]
"""


def pod(name: str) -> str:
    return POD.replace("NAME", name)


def state_of(*files: Path) -> ClusterState:
    return asyncio.run(read_state([str(file) for file in files]))


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    file = tmp_path / "cluster.yaml"
    file.write_text(CLUSTER)
    return file


def saved(tmp_path: Path, *files: Path, name: str = "s.json", config: SchedulerConfig | None = None) -> Path:
    file = tmp_path / name
    file.write_text(snapshot(state_of(*files), config or SchedulerConfig(), yaml=file.suffix == ".yaml"))
    return file


@pytest.mark.parametrize("name", ["s.json", "s.yaml"])
def test_a_snapshot_that_is_read_equals_the_saved_state(tmp_path: Path, cluster: Path, name: str) -> None:
    state = state_of(cluster)
    read = state_of(saved(tmp_path, cluster, name=name))
    assert read.brought == ()
    found = {(type(obj).__name__, obj.key): obj for obj in read.objects}
    assert set(found) == {("Node", "n1"), ("PriorityClass", "high"), ("Pod", "a/running"), ("PodGroup", "a/g")}
    for obj in state.brought:
        kept = found[type(obj).__name__, obj.key]
        if isinstance(obj, Pod):
            assert (kept.metadata.uid, kept.metadata.annotations) == (obj.metadata.uid, {"kept": "yes"})
            assert isinstance(kept, Pod)
            assert kept.spec == obj.spec
        elif isinstance(obj, Node):  # devices are advertised by no agent of a manifest
            assert isinstance(kept, Node)
            assert kept.status.allocatable.items() >= obj.status.allocatable.items()
        else:
            assert kept == obj


def test_a_snapshot_contains_no_secrets(tmp_path: Path, cluster: Path) -> None:
    text = saved(tmp_path, cluster).read_text()
    assert "hunter2" not in text
    assert '"kind":"Secret"' not in text


def test_the_text_does_not_depend_on_the_order_of_the_objects(cluster: Path) -> None:
    objects = state_of(cluster).brought
    assert snapshot_text(objects, {}, yaml=False) == snapshot_text(objects[::-1], {}, yaml=False)


def test_every_watched_kind_can_be_saved() -> None:
    objects = [kind(metadata=ObjectMeta(name="x", uid=kind.__name__)) for kind in (*KINDS, ConfigMap)]
    document = json.loads(snapshot_text(objects, {}, yaml=False))
    assert {item["kind"] for item in document["items"]} == {kind.__name__ for kind in (*KINDS, ConfigMap)}
    MemoryCluster(objects)  # and put where decisions are made


def test_the_snapshots_configuration_applies_unless_an_option_names_another(tmp_path: Path, cluster: Path) -> None:
    text = "apiVersion: fluence.flux-framework.org/v1alpha1\nkind: SchedulerConfiguration\nseed: 7\n"
    file = saved(tmp_path, cluster, config=parse_config(text, "c"))
    assert state_of(file).config().seed == 7
    assert state_of(cluster).config().seed == 0
    document = json.loads(file.read_text())
    document["configuration"]["sede"] = 1
    file.write_text(json.dumps(document))
    with pytest.raises(InputError, match=r"s\.json: configuration: sede: .*did you mean seed"):
        state_of(file).config()


def test_a_snapshot_contains_the_resources_and_needs_no_file(tmp_path: Path, cluster: Path) -> None:
    resources, devices, file = tmp_path / "r.yaml", tmp_path / "devices.yaml", tmp_path / "s.json"
    resources.write_text("resources: [{type: qpu, name: q, attributes: {region: north}}]")
    devices.write_text(pod("quantum").replace("requests: {cpu:", "limits: {fluxion.flux-framework.org/qpu:"))
    arguments = [str(cluster), str(devices), "--resources", str(resources)]
    assert main(["snapshot", *arguments, "-o", str(file)]) == 0
    resources.unlink()
    (placed,) = simulate([str(file)], config=state_of(file).config())["pods"]
    assert (placed["node"], placed["attributes"]) == ("n1", {"region": "north"})


def test_an_argument_with_the_name_of_a_secret_is_omitted_with_a_warning(
    tmp_path: Path, cluster: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    register_plugin_builder("secretive", lambda args: type("Secretive", (), {"name": "secretive"})())
    config = tmp_path / "c.yaml"
    config.write_text(
        "apiVersion: fluence.flux-framework.org/v1alpha1\nkind: SchedulerConfiguration\n"
        "profiles: [{plugins: [{name: secretive, args: {apiToken: hunter2, other: 1}}]}]\n"
    )
    assert main(["snapshot", str(cluster), "--config", str(config), "-o", str(tmp_path / "s.json")]) == 0
    (plugin,) = [p for p in json.loads((tmp_path / "s.json").read_text())["configuration"]["profiles"][0]["plugins"]
                 if p["name"] == "secretive"]  # fmt: skip
    assert plugin["args"] == {"other": 1}
    assert "the argument apiToken of plugin secretive" in capsys.readouterr().err


@pytest.mark.parametrize(("output", "same"), [("json", []), ("-", []), ("yaml", ["-o", "./yaml"])])
def test_a_format_writes_to_standard_output_and_any_other_value_is_a_file(
    output: str,
    same: list[str],
    cluster: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["snapshot", str(cluster), "-o", output]) == 0
    shown = capsys.readouterr().out
    assert yaml.safe_load(shown)["kind"] == "Snapshot"
    assert shown.startswith("apiVersion: " if output == "yaml" else "{")
    assert main(["snapshot", str(cluster), *same]) == 0
    assert (Path("yaml").read_text() if same else capsys.readouterr().out).startswith("{")


def test_keys_and_users_of_extenders_are_omitted(tmp_path: Path, cluster: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(
        "apiVersion: fluence.flux-framework.org/v1alpha1\nkind: SchedulerConfiguration\n"
        "extenders: [{urlPrefix: 'https://me:hunter2@a', tlsConfig: {caFile: my-ca.crt}}]\n"
    )
    assert main(["snapshot", str(cluster), "--config", str(config), "-o", str(tmp_path / "s.json")]) == 0
    text = (tmp_path / "s.json").read_text()
    assert "hunter2" not in text
    assert "my-ca.crt" not in text
    assert len(state_of(tmp_path / "s.json").config().extenders) == 1


# ------------------------------------------------------------------ files beside a snapshot


def test_manifests_are_added_to_a_snapshot_as_to_a_cluster(tmp_path: Path, cluster: Path) -> None:
    file, more = saved(tmp_path, cluster), tmp_path / "more.yaml"
    more.write_text("---".join([pod("one"), pod("two")]))
    for order in ([file, more], [more, file]):
        state = state_of(*order)
        assert [obj.spec.priority for obj in state.brought if isinstance(obj, Pod)] == [7, 7]
        result = simulate([str(one) for one in order], config=SchedulerConfig())
        assert [one["node"] for one in result["pods"]] == ["n1", "n1"]
        assert [one["name"] for one in result["preempted"]] == ["running"]  # their class is known


def test_a_manifest_with_the_name_of_a_saved_object_is_rejected(tmp_path: Path, cluster: Path) -> None:
    file, more = saved(tmp_path, cluster), tmp_path / "more.yaml"
    more.write_text(pod("running"))
    for order in ([file, more], [more, file]):
        with pytest.raises(InputError, match=r"Pod a/running: metadata.name: 'running' already exists in .*; rename"):
            state_of(*order)


def test_generated_names_differ_from_those_in_the_snapshot(tmp_path: Path, cluster: Path) -> None:
    more = tmp_path / "more.yaml"
    more.write_text(pod("x").replace("name: x,", "generateName: running,"))
    cluster.write_text(CLUSTER.replace("name: running", "name: running0"))
    (made,) = state_of(saved(tmp_path, cluster), more).brought
    assert made.metadata.name == "running1"


# ------------------------------------------------------------------ invalid files


def changed(file: Path, change: Any, *, as_yaml: bool) -> Path:
    document = json.loads(file.read_text())
    change(document)
    file = file.with_suffix(".yaml" if as_yaml else ".json")
    file.write_text(yaml.safe_dump(document) if as_yaml else json.dumps(document))
    return file


def item(document: Any, kind: str) -> Any:
    return next(item for item in document["items"] if item["kind"] == kind)


@pytest.mark.parametrize("as_yaml", [False, True])
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda d: item(d, "Pod").update(kind="Secret"), "Secret a/running: kind: a snapshot cannot contain 'Secret'"),
        (lambda d: item(d, "Pod")["metadata"].pop("uid"), "Pod a/running: metadata.uid: is missing"),
        (lambda d: item(d, "Pod")["spec"].update(containers=3), "Pod a/running: spec.containers: "),
        (lambda d: d["items"].append(3), "Snapshot (items[4]): expected an object with a kind"),
        (lambda d: d.update(items=3), "items: must be a list of objects"),
        (lambda d: d.update(configuration=3), "configuration: must be a mapping"),
        (lambda d: d["items"].append(item(d, "Pod")), "'running' already exists in"),
    ],
)  # fmt: skip
def test_an_invalid_snapshot_is_reported_in_one_line_with_file_object_and_field(
    tmp_path: Path, cluster: Path, change: Any, problem: str, as_yaml: bool
) -> None:
    file = changed(saved(tmp_path, cluster), change, as_yaml=as_yaml)
    with pytest.raises(InputError) as raised:
        state_of(file)
    assert str(raised.value).startswith(str(file))
    assert problem in str(raised.value)
    assert "\n" not in str(raised.value)


def test_two_snapshots_at_once_are_rejected(tmp_path: Path, cluster: Path) -> None:
    one, two = saved(tmp_path, cluster), saved(tmp_path, cluster, name="t.yaml")
    with pytest.raises(InputError, match=r"t\.yaml: .*the initial state already comes from .*s\.json; use one"):
        state_of(one, two)


def test_an_unwritable_file_and_a_context_without_a_kubeconfig_are_errors(
    tmp_path: Path, cluster: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["snapshot", str(cluster), "-o", str(tmp_path / "no" / "s.json")]) == 2
    assert "s.json: cannot be written: No such file or directory" in capsys.readouterr().err
    assert main(["simulate", str(cluster), "--context", "x"]) == 2
    assert "--context x: needs --kubeconfig" in capsys.readouterr().err
