"""`simulate`, `explain` and `snapshot` with a real API server's state: they read it, and never write."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from session_scheduler.cli import main
from session_scheduler.model.durations import DURATION_ANNOTATION

from .conftest import new_control_plane
from .harness import SCHEDULER, ControlPlane
from .scheduler_process import SchedulerProcess, kubeconfig_for


@pytest.fixture(scope="module")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A separate control plane, because these commands read all of its objects."""
    with new_control_plane(tmp_path_factory.mktemp("what-if")) as plane:
        yield plane


@pytest.fixture
def placed(control_plane: ControlPlane) -> Any:
    """A namespace with a pod that fits on its own node, one that fits on no node, and a Secret."""
    namespace = control_plane.new_namespace()
    control_plane.new_node(f"{namespace}-n", cpu="2000")
    for name, cpu in (("fits", "1000"), ("large", "3000")):
        control_plane.create(pod(namespace, name, cpu))
    control_plane.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": namespace},
                          "stringData": {"password": "hunter2"}})  # fmt: skip
    yield namespace
    for name in ("fits", "large"):
        control_plane.request("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}", {"gracePeriodSeconds": 0})
    control_plane.request("DELETE", f"/api/v1/nodes/{namespace}-n")


def pod(namespace: str, name: str, cpu: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "annotations": {DURATION_ANNOTATION: "1h30m"}},
        "spec": {"schedulerName": "fluence", "nodeSelector": {},
                 "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}},
                                 "env": [{"name": "PASSWORD", "value": "hunter2"}]}]},
    }  # fmt: skip


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> Any:
    assert main([*arguments, "-o", "json"]) == status, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def versions(plane: ControlPlane) -> dict[str, str]:
    """Return the resourceVersions of all pods and nodes, which change with every write."""
    found = {}
    for path in ("/api/v1/pods", "/api/v1/nodes"):
        items = plane.request("GET", path)[1]["items"]
        found |= {one["metadata"]["uid"]: one["metadata"]["resourceVersion"] for one in items}
    return found


def test_a_live_cluster_is_read_and_decided_on_alone_with_files_and_from_its_snapshot(
    control_plane: ControlPlane, placed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubeconfig = str(control_plane.kubeconfig(SCHEDULER))
    live = ["--kubeconfig", kubeconfig]
    before = versions(control_plane)

    def nodes(result: Any) -> dict[str, str | None]:
        return {one["name"]: one["node"] for one in result["pods"] if one["namespace"] == placed}

    assert nodes(printed(capsys, "simulate", *live, status=1)) == {"fits": f"{placed}-n", "large": None}
    (large,) = printed(capsys, "explain", *live, "--pod", f"{placed}/large")["pods"]
    assert large["nodes"][f"{placed}-n"]["plugin"] == "NodeResourcesFit"
    near = {"kind": "Pod", **pod(placed, "near", "1")}
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "web"}}}
    near["spec"] |= {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}},
                     "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]}  # fmt: skip
    (tmp_path / "near.yaml").write_text(yaml.safe_dump(near))
    (reported,) = printed(capsys, "explain", str(tmp_path / "near.yaml"), *live, "--pod", f"{placed}/near")["pods"]
    assert reported["fitsIf"] == ["claim data existed"]
    wanted = {one["plugin"]: one["changes"] for one in reported["nodes"][f"{placed}-n"]["fitsIf"]}
    assert wanted["InterPodAffinity"] == [  # nodes have no labels here, because there is no kubelet
        f"{placed}-n had the label kubernetes.io/hostname", f"a pod matching app=web ran on {placed}-n",
    ]  # fmt: skip

    more = tmp_path / "more.yaml"
    roomy = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"{placed}-m"},
             "status": {"allocatable": {"cpu": "4000", "memory": "8Gi", "pods": "9"}}}  # fmt: skip
    more.write_text(yaml.safe_dump(roomy))
    assert nodes(printed(capsys, "simulate", str(more), *live))["large"] == f"{placed}-m"

    snapshot = tmp_path / "s.json"
    assert main(["snapshot", *live, "-o", str(snapshot)]) == 0
    text = snapshot.read_text()
    assert "managedFields" not in text
    assert "hunter2" not in text
    assert '"Secret"' not in text
    assert printed(capsys, "simulate", str(snapshot), status=1) == printed(capsys, "simulate", *live, status=1)
    assert printed(capsys, "simulate", str(more), str(snapshot)) == printed(capsys, "simulate", str(more), *live)
    assert versions(control_plane) == before


def test_a_cluster_that_is_not_there_or_refuses_is_one_line(
    control_plane: ControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = yaml.safe_load(control_plane.kubeconfig(SCHEDULER).read_text())
    document["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    gone = tmp_path / "gone.kubeconfig"
    gone.write_text(yaml.safe_dump(document))
    document["clusters"][0]["cluster"]["server"] = control_plane.server
    document["users"][0]["user"]["token"] = "wrong"
    stranger = tmp_path / "stranger.kubeconfig"
    stranger.write_text(yaml.safe_dump(document))
    for kubeconfig, problem, remedy in (
        (gone, "list of priorityclasses: ", "check the cluster's address in the kubeconfig"),
        (
            stranger,
            "list of priorityclasses: 401",
            "grant your account the verbs get, list and watch on PriorityClass objects",
        ),
    ):
        for command in ("simulate", "explain", "snapshot"):
            assert main([command, "--kubeconfig", str(kubeconfig)]) == 2
            captured = capsys.readouterr()
            (line,) = captured.err.splitlines()
            assert captured.out == ""
            assert line.startswith(f"fluence: {problem}")
            assert remedy in line


def test_a_scheduler_explains_what_its_last_cycle_left(
    control_plane: ControlPlane, placed: str, tmp_path: Path
) -> None:
    with SchedulerProcess(tmp_path, kubeconfig_for(control_plane, tmp_path)) as scheduler:
        scheduler.start()
        scheduler.wait_ready()
        path = f"/api/v1/namespaces/{placed}/pods"
        control_plane.wait_for(f"{path}/fits", lambda one: one["spec"].get("nodeName"))
        control_plane.wait_for(f"{path}/large", lambda one: one.get("status", {}).get("conditions"))
        before = control_plane.request("GET", f"{path}/large")[1]["spec"]
        token = control_plane.token()
        status, text = scheduler.get(f"/explain/{placed}/large", token)
        reported = json.loads(text)
        assert (status, reported["phase"], reported["node"]) == (200, "pending", None)
        assert "Insufficient cpu" in reported["lastCycle"]
        assert reported["nodes"][f"{placed}-n"]["fitsIf"][0] == {
            "plugin": "NodeResourcesFit", "changes": [f"3000 cpu were free on {placed}-n (1000 of 2000 now)"],
        }  # fmt: skip
        assert json.loads(scheduler.get(f"/explain/{placed}/fits", token)[1])["node"] == f"{placed}-n"
        assert scheduler.get(f"/explain/{placed}/none", token)[0] == 404
        assert control_plane.request("GET", f"{path}/large")[1]["spec"] == before
        assert scheduler.terminate().status == 0


def test_status_tells_of_a_live_cluster_as_its_scheduler_left_it(
    control_plane: ControlPlane, placed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with SchedulerProcess(tmp_path, kubeconfig_for(control_plane, tmp_path)) as scheduler:
        scheduler.start()
        path = f"/api/v1/namespaces/{placed}/pods"
        control_plane.wait_for(f"{path}/fits", lambda one: one["spec"].get("nodeName"))
        control_plane.wait_for(f"{path}/large", lambda one: one.get("status", {}).get("conditions"))
    reported = printed(capsys, "status", "--kubeconfig", str(control_plane.kubeconfig(SCHEDULER)))
    (held,) = [one for one in reported["held"] if one["namespace"] == placed]
    assert (held["name"], held["node"]) == ("fits", f"{placed}-n")
    assert held["jobid"].isdecimal()
    began, ends = map(datetime.fromisoformat, (held["since"], held["until"]))
    assert ends - began == timedelta(minutes=90)
    (waits,) = [one for one in reported["waiting"] if one["namespace"] == placed]
    condition = control_plane.request("GET", f"{path}/large")[1]["status"]["conditions"][0]
    assert (waits["name"], waits["reason"]) == ("large", condition["message"])
