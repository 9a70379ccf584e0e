"""`fluence status`: what is held, what waits and why, and what queues have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from session_scheduler import hookimpl
from session_scheduler.cli import main
from session_scheduler.config.settings import QueueConfig, SchedulerConfig
from session_scheduler.model.durations import DURATION_ANNOTATION
from session_scheduler.model.objects import Pod
from session_scheduler.offline.status import status_of
from session_scheduler.testing import FakeCluster, node, pod

CLUSTER = """
apiVersion: v1
kind: Node
metadata: {name: n1}
status: {allocatable: {cpu: "4", memory: 8Gi, pods: "10"}}
---
apiVersion: v1
kind: Pod
metadata: {name: runs, labels: {fluence.flux-framework.org/queue: team}}
spec:
  nodeName: n1
  schedulerName: fluence
  activeDeadlineSeconds: 3600
  containers: [{name: c, image: i, resources: {requests: {cpu: "1"}}}]
status:
  startTime: "2026-01-02T03:04:05Z"
  conditions: [{type: PodScheduled, status: "True", lastTransitionTime: "2026-01-02T03:04:04Z"}]
---
apiVersion: v1
kind: Pod
metadata: {name: theirs}
spec: {nodeName: n1, containers: [{name: c, image: i}]}
---
apiVersion: v1
kind: Pod
metadata: {name: reported, creationTimestamp: "2026-01-02T00:00:00Z"}
spec: {schedulerName: fluence, containers: [{name: c, image: i, resources: {requests: {cpu: "9"}}}]}
status: {conditions: [{type: PodScheduled, status: "False", reason: Unschedulable, message: as the scheduler said}]}
---
apiVersion: v1
kind: Pod
metadata: {name: large}
spec: {schedulerName: fluence, containers: [{name: c, image: i, resources: {requests: {cpu: "9"}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: new}
spec: {schedulerName: fluence, containers: [{name: c, image: i}]}
---
apiVersion: v1
kind: Pod
metadata: {name: gated}
spec: {schedulerName: fluence, schedulingGates: [{name: x}], containers: [{name: c, image: i}]}
"""


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    (tmp_path / "c.yaml").write_text(CLUSTER)
    return str(tmp_path / "c.yaml")


def test_a_running_pod_is_listed_with_its_start_and_its_end(cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", cluster, "-o", "json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["held"] == [
        {"namespace": "default", "name": "runs", "group": None, "queue": "team", "node": "n1", "jobid": None,
         "devices": [], "since": "2026-01-02T03:04:04Z", "until": "2026-01-02T04:04:05Z"}
    ]  # fmt: skip
    assert result["summary"] == {"held": 1, "waiting": 4, "problems": {}}


def test_a_waiting_pod_has_the_reason_of_its_condition_or_the_one_of_explain(
    cluster: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", cluster, "-o", "json"]) == 0
    waiting = {one["name"]: one for one in json.loads(capsys.readouterr().out)["waiting"]}
    assert {name: one["reason"] for name, one in waiting.items()} == {
        "reported": "as the scheduler said",
        "large": "0/1 nodes are available: 1 Insufficient cpu.",
        "new": "not tried yet: the pod fits on 1 of 1 nodes",
        "gated": "Scheduling is blocked due to non-empty scheduling gates: x",
    }
    assert waiting["reported"]["since"] == "2026-01-02T00:00:00Z"


def test_queues_are_listed_as_by_the_command_queues(
    cluster: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("apiVersion: fluence.flux-framework.org/v1alpha1\nkind: SchedulerConfiguration\n"
                      "queues: [{name: team, deserved: {cpu: 2}}]\n")  # fmt: skip
    assert main(["status", cluster, "--config", str(config), "-o", "json"]) == 0
    queues = {one["name"]: one for one in json.loads(capsys.readouterr().out)["queues"]}
    assert queues["team"]["allocated"]["cpu"] in ("1", 1)
    assert main(["queues", cluster, "--config", str(config), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["queues"] == list(queues.values())


def test_the_limit_of_a_queue_is_the_reason_of_its_own_pods_only() -> None:
    config = SchedulerConfig(queues=(QueueConfig(name="team", limit={"cpu": "1"}),))
    cluster = FakeCluster(config=config)
    team = {"fluence.flux-framework.org/queue": "team"}
    cluster.add(node("n1"), pod("theirs", cpu="2", labels=team), pod("ours", cpu="2"))
    reasons = {one["name"]: one["reason"] for one in status_of(cluster.start())["waiting"]}
    assert reasons["theirs"].startswith("queue 'team' has reached its limit of cpu: limit 1")
    assert reasons["ours"] == "not tried yet: the pod fits on 1 of 1 nodes"


def test_the_default_output_is_tables(cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", cluster]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("  ")[0] == "NAMESPACE"
    assert any(line.split()[:5] == ["default", "runs", "-", "team", "n1"] for line in lines)
    assert any(line.endswith("as the scheduler said") for line in lines)
    ages = {line.split()[1]: line.split()[4:6] for line in lines if line.startswith("default ")}
    assert (ages["reported"][0], lines[1].split()[6:8]) == ("3h4m", ["0s", "60m"])
    assert not any("2026-01-02T" in line for line in lines)
    assert lines[-1] == "1 held, 4 waiting"


class Holds:
    name = "holds"

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    @hookimpl
    def shown_holding(self, pod: Any) -> Any:
        return self._answer


def status(answer: Any) -> Any:
    cluster = FakeCluster()
    cluster.add(node("n1"), pod("p", bound_to="n1"))
    return json.loads(json.dumps(status_of(cluster.start(Holds(answer)))))


def test_a_plugin_reports_the_jobid_and_devices_of_a_pod() -> None:
    assert [(one["jobid"], one["devices"]) for one in status({"jobid": "7", "devices": ["/q/0"]})["held"]] == [
        ("7", ["/q/0"])
    ]


@pytest.mark.parametrize("answer", [["x"], {"node": "hacked"}, {"jobid": object()}])
def test_a_plugin_with_an_invalid_answer_is_named_and_its_answer_ignored(answer: Any) -> None:
    reported = status(answer)
    assert (reported["held"][0]["node"], reported["held"][0]["jobid"]) == ("n1", None)
    assert reported["summary"]["problems"]["Plugin holds"].startswith("plugin holds failed in shown_holding: ")


def begun(of: Pod, at: str = "2026-01-02T03:04:05Z") -> Pod:
    return replace(of, status=replace(of.status, start_time=at))


def held(*objects: Any) -> dict[str, Any]:
    cluster = FakeCluster()
    cluster.add(node("n1"), *objects)
    return {one["name"]: one for one in status_of(cluster.start())["held"]}


def test_the_end_is_after_the_duration_or_the_deadline_whichever_is_shorter() -> None:
    reported = held(
        begun(pod("long", bound_to="n1", annotations={DURATION_ANNOTATION: "2h"}, active_deadline_seconds=3600)),
        begun(pod("short", bound_to="n1", annotations={DURATION_ANNOTATION: "90s"}, active_deadline_seconds=3600)),
        begun(pod("endless", bound_to="n1")),
    )
    assert {name: one["until"] for name, one in reported.items()} == {
        "long": "2026-01-02T04:04:05Z", "short": "2026-01-02T03:05:35Z", "endless": None,
    }  # fmt: skip


def test_an_end_after_the_year_9999_is_not_shown() -> None:
    far = pod("p", bound_to="n1", annotations={DURATION_ANNOTATION: "2000000h"})
    assert held(begun(far, "9999-01-02T03:04:05Z"))["p"]["until"] is None


def test_an_invalid_duration_is_reported_with_its_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.yaml").write_text(
        CLUSTER
        + """
---
apiVersion: v1
kind: Pod
metadata: {name: soon, annotations: {fluence.flux-framework.org/duration: 2 hours}}
spec: {schedulerName: fluence, nodeName: n1, activeDeadlineSeconds: 60, containers: [{name: c, image: i}]}
status: {startTime: "2026-01-02T03:04:05Z"}
"""
    )
    assert main(["simulate", str(tmp_path / "c.yaml"), "-o", "json"]) == 1
    simulated = json.loads(capsys.readouterr().out)
    assert main(["status", str(tmp_path / "c.yaml"), "-o", "json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert simulated["summary"]["problems"] == result["summary"]["problems"]
    assert {one["name"]: one["until"] for one in result["held"]}["soon"] == "2026-01-02T03:05:05Z"
    assert result["summary"]["problems"] == {
        "Pod default/soon": "metadata.annotations[fluence.flux-framework.org/duration]: '2 hours' is not a valid "
        "duration; write 90s, 30m, 1h30m or a number of seconds"
    }
