"""`simulate --add-nodes` and `--without-plugin`, and what `-o diff` says of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from session_scheduler.cli import main
from session_scheduler.model.devices import ResourceSlice, ResourceSliceSpec
from session_scheduler.model.node_topology import NodeResourceTopology
from session_scheduler.model.objects import ObjectMeta
from session_scheduler.model.storage import CSINode
from session_scheduler.offline.state import ClusterState
from session_scheduler.offline.what_if import WhatIf, difference
from session_scheduler.testing import node

from ....tools.numa import topology

CLUSTER = """
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {kubernetes.io/hostname: n1, zone: a}}
spec: {taints: [{key: team, effect: NoSchedule}]}
status: {allocatable: {cpu: "2", memory: 8Gi, pods: "10"}}
---
apiVersion: v1
kind: Pod
metadata: {name: low}
spec: {nodeName: n1, containers: [{name: c, image: i, resources: {requests: {cpu: "1"}}}]}
"""
POD = """
---
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  schedulerName: fluence
  PRIORITY
  tolerations: [{key: team, operator: Exists}]
  containers: [{name: c, image: i, resources: {requests: {cpu: CPU}}}]
"""
BIG = "apiVersion: v1\nkind: Node\nmetadata: {name: big}\nstatus: {allocatable: {cpu: '12', memory: 8Gi, pods: '9'}}\n"
SNAPSHOT = {
    "apiVersion": "fluence.flux-framework.org/v1alpha1",
    "kind": "Snapshot",
    "configuration": {},
    "items": [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n9", "uid": "u9"}}],
}


def pod(name: str, cpu: str, priority: str = "") -> str:
    return POD.replace("NAME", name).replace("CPU", cpu).replace("PRIORITY", priority)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(CLUSTER + pod("one", "1") + pod("two", "2") + pod("huge", "8"))
    (tmp_path / "big.yaml").write_text(BIG)
    return tmp_path


def answer(capsys: pytest.CaptureFixture[str], *options: str, status: int = 1) -> Any:
    assert main(["simulate", "c.yaml", *options, "-o", "json"]) == status, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def nodes(result: Any) -> dict[str, str | None]:
    return {one["name"]: one["node"] for one in result["pods"]}


def test_copies_of_a_node_fit_the_pods_that_the_node_would_fit(
    cluster: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert nodes(answer(capsys)) == {"one": "n1", "two": None, "huge": None}
    for option in ("2", "2xn1"):
        result = answer(capsys, "--add-nodes", option)
        assert nodes(result)["huge"] is None
        assert nodes(result)["two"] in ("n1-added-1", "n1-added-2")
    assert result["diff"]["pods"][-1] == {
        "namespace": "default", "name": "two", "group": None,
        "before": {"node": None, "backend": None, "attributes": {}},
        "after": {"node": nodes(result)["two"], "backend": None, "attributes": {}},
    }  # fmt: skip
    assert result["diff"]["summary"] == {
        "before": {"scheduled": 1, "unschedulable": 2}, "after": {"scheduled": 2, "unschedulable": 1},
    }  # fmt: skip


def test_nodes_of_a_file_are_added_once_or_as_copies(cluster: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert nodes(answer(capsys, "--add-nodes", "big.yaml", status=0))["huge"] == "big"
    assert nodes(answer(capsys, "--add-nodes", "1xbig.yaml", status=0))["huge"] == "big-added-1"
    both = answer(capsys, "--add-nodes", "big.yaml", "--add-nodes", "1xn1", status=0)
    assert both["diff"]["summary"]["after"] == {"scheduled": 3, "unschedulable": 0}


def test_a_copy_of_a_node_has_a_name_a_csi_node_and_resource_slices_of_its_own() -> None:
    template = node("n1", labels={"kubernetes.io/hostname": "n1", "zone": "a"})
    csi = CSINode(metadata=ObjectMeta(name="n1", uid="c"))
    slice_ = ResourceSlice(metadata=ObjectMeta(name="s", uid="s"), spec=ResourceSliceSpec(driver="d", node_name="n1"))
    state = WhatIf(["2xn1"]).state(ClusterState((template, csi, slice_)))
    assert state.brought == ()
    added = state.objects[3:]
    assert [obj.metadata.name for obj in added] == [
        "n1-added-1", "n1-added-1", "s-n1-added-1", "n1-added-2", "n1-added-2", "s-n1-added-2",
    ]  # fmt: skip
    assert added[0].metadata.labels == {"kubernetes.io/hostname": "n1-added-1", "zone": "a"}
    first, second = added[2], added[5]
    assert isinstance(first, ResourceSlice)
    assert isinstance(second, ResourceSlice)
    assert second.spec.node_name == "n1-added-2"
    assert second.spec.pool.name != first.spec.pool.name
    assert len({obj.metadata.uid for obj in state.objects}) == 9
    again = WhatIf(["1xn1"]).state(state)
    assert [obj.metadata.name for obj in again.objects[9:]] == ["n1-added-3", "n1-added-3", "s-n1-added-3"]


def test_a_copy_of_a_node_has_empty_numa_zones() -> None:
    used = topology("n1", {"cpu": 8}, used={0: {"cpu": 3}})
    (added,) = (one for one in WhatIf(["1xn1"]).state(ClusterState((node("n1"), used))).objects[2:]
                if isinstance(one, NodeResourceTopology))  # fmt: skip
    assert (added.metadata.name, added.attributes) == ("n1-added-1", used.attributes)
    assert added.zones == topology("", {"cpu": 8}).zones


def test_no_hook_of_an_omitted_plugin_is_called(cluster: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--without-plugin", "NodeResourcesFit", "--without-plugin", "fluence")
    assert set(nodes(answer(capsys, *options, status=0)).values()) == {"n1"}


def test_the_difference_alone_is_a_table(cluster: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "c.yaml", "--add-nodes", "big.yaml", "-o", "diff"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["NAMESPACE", "POD", "GROUP", "BEFORE", "AFTER"]
    assert ["default", "huge", "-", "-", "big"] in lines
    assert lines[-2:] == [
        ["before:", "1", "scheduled,", "2", "unschedulable"], ["after:", "3", "scheduled,", "0", "unschedulable"],
    ]  # fmt: skip
    assert main(["simulate", "c.yaml", "--without-plugin", "ImageLocality", "-o", "diff"]) == 1
    assert capsys.readouterr().out.startswith("no decision changes\n")


def test_preempted_pods_are_part_of_the_difference(cluster: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (cluster / "c.yaml").write_text(CLUSTER + pod("two", "2", "priority: 9"))
    diff = answer(capsys, "--add-nodes", "1", status=0)["diff"]
    assert diff["preempted"] == [
        {"namespace": "default", "name": "low", "node": "n1", "before": True, "after": False}
    ]  # fmt: skip


def test_moved_pods_and_their_new_nodes_are_part_of_the_difference() -> None:
    kept, other = ({"namespace": "a", "name": name, "node": "n1", "to": "n2"} for name in ("kept", "other"))
    summary = {"scheduled": 0, "unschedulable": 0}
    before = {"pods": [], "summary": summary, "moved": [kept, other]}
    after = {"pods": [], "summary": summary, "moved": [kept, other | {"to": "n3"}]}
    changed = {"namespace": "a", "name": "other", "node": "n1", "before": "n2"}
    assert difference(before, after)["moved"] == [changed | {"after": "n3"}]
    assert [one["after"] for one in difference(before, {"pods": [], "summary": summary})["moved"]] == [None, None]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--without-plugin", "NodeResourceFit"], "--without-plugin NodeResourceFit: no profile enables this "
         "plugin; did you mean NodeResourcesFit?"),
        (["--without-plugin", "x"], "--without-plugin x: no profile enables this plugin; name one of "),
        (["--add-nodes", "0"], "--add-nodes 0: 0 nodes is out of range; add between 1 and 10000"),
        (["--add-nodes", "9" * 5000], "nodes is out of range; add between 1 and 10000"),
        (["--add-nodes", "2xn2"], "--add-nodes 2xn2: no node or file is named 'n2'; name a node of the cluster"),
        (["--add-nodes", "c.yaml"], "Node n1: metadata.name: 'n1' already exists in the cluster; rename or remove one"),
        (["--add-nodes", "pods.yaml"], "--add-nodes pods.yaml: pods.yaml contains a Pod; name a file with nodes only"),
        (["--add-nodes", "none.yaml"], "none.yaml: cannot be read"),
        (["--add-nodes", "big.yaml", "--add-nodes", "2"], "--add-nodes 2: nodes big and n1 differ; name the node "
         "to copy, as NxNODE"),
        (["-o", "diff"], "-o diff: needs --add-nodes or --without-plugin; add one of them"),
    ],
)  # fmt: skip
def test_an_invalid_option_is_reported_in_one_line(
    cluster: Path, capsys: pytest.CaptureFixture[str], options: list[str], problem: str
) -> None:
    (cluster / "pods.yaml").write_text(pod("more", "1"))
    assert main(["simulate", "c.yaml", *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert problem in line


def test_the_state_and_the_configuration_stay_as_they_were() -> None:
    state = ClusterState((node("n1"),))
    WhatIf(["3"]).state(state)
    assert len(state.objects) == 1


def test_a_plugin_that_is_named_twice_is_an_error(cluster: Path, capsys: pytest.CaptureFixture[str]) -> None:
    del cluster
    twice = ("--without-plugin", "TaintToleration") * 2
    assert main(["simulate", "c.yaml", *twice]) == 2
    assert capsys.readouterr().err == "fluence: --without-plugin TaintToleration: given twice; pass it once\n"


def test_a_directory_with_a_snapshot_is_rejected_as_a_source_of_nodes(
    cluster: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = cluster / "more"
    more.mkdir()
    (more / "big.yaml").write_text(BIG)
    (more / "state.json").write_text(json.dumps(SNAPSHOT))
    assert main(["simulate", "c.yaml", "--add-nodes", "more"]) == 2
    line = "more/state.json: Snapshot (document 1): contains a whole cluster; name a file with nodes only"
    assert capsys.readouterr().err == f"fluence: {line}\n"


@pytest.mark.parametrize("name", ["state.json", "state.yaml"])
def test_a_snapshot_of_another_version_is_rejected_with_its_version(
    cluster: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (cluster / name).write_text(json.dumps({**SNAPSHOT, "apiVersion": "fluence.flux-framework.org/v9"}))
    assert main(["simulate", name]) == 2
    line = f"{name}: Snapshot (document 1): apiVersion: expected fluence.flux-framework.org/v1alpha1, got "
    remedy = "take the snapshot again with this version"
    assert capsys.readouterr().err == f"fluence: {line}'fluence.flux-framework.org/v9'; {remedy}\n"


def test_a_queue_has_no_other_fields(cluster: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "apiVersion: fluence.flux-framework.org/v1alpha1\nkind: Queue\nmetadata: {name: a}\nspec: {wieght: 1}\n"
    (cluster / "q.yaml").write_text(text)
    for command in ("simulate", "queues"):
        assert main([command, "q.yaml"]) == 2
        line = (
            "q.yaml: Queue a: spec.wieght: unknown field; use one of deserved, limit, overQuotaWeight, parent, priority"
        )
        assert capsys.readouterr().err == f"fluence: {line}\n"
