"""The contract of `fluence explain -o json` for programs, key by key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from session_scheduler.builtin import BUILTIN
from session_scheduler.cli import main

CLUSTER = """
apiVersion: v1
kind: Node
metadata: {name: tainted}
spec: {taints: [{key: team, value: x, effect: NoSchedule}]}
status: {allocatable: {cpu: "4", memory: 8Gi, pods: "10"}}
---
apiVersion: v1
kind: Node
metadata: {name: open}
status: {allocatable: {cpu: "4", memory: 8Gi, pods: "10"}}
---
apiVersion: v1
kind: Pod
metadata: {name: plain}
spec: {schedulerName: fluence, containers: [{name: c, image: i, resources: {requests: {cpu: "1"}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: large}
spec: {schedulerName: fluence, containers: [{name: c, image: i, resources: {requests: {cpu: "5"}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: gated}
spec: {schedulerName: fluence, schedulingGates: [{name: later}], containers: [{name: c, image: i}]}
---
apiVersion: v1
kind: Pod
metadata: {name: grouped}
spec: {schedulerName: fluence, schedulingGroup: {podGroupName: nowhere}, containers: [{name: c, image: i}]}
---
apiVersion: v1
kind: Pod
metadata: {name: quantum}
spec:
  schedulerName: fluence
  containers: [{name: c, image: i, resources: {limits: {fluxion.flux-framework.org/qpu: 1}}}]
---
apiVersion: v1
kind: Pod
metadata: {name: theirs}
spec: {containers: [{name: c, image: i, resources: {requests: {cpu: "1"}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: runs}
spec: {schedulerName: fluence, nodeName: open, containers: [{name: c, image: i, resources: {requests: {cpu: "1"}}}]}
"""


HOW_TO = Path(__file__).parents[3] / "docs/how-to/ask-why-and-what-if.md"
AS_IN_THE_HOW_TO = """
apiVersion: v1
kind: Node
metadata: {name: n1}
status: {allocatable: {cpu: "4", memory: 16Gi, pods: "110"}}
---
apiVersion: v1
kind: Node
metadata: {name: n2}
spec: {taints: [{key: team, value: x, effect: NoSchedule}]}
status: {allocatable: {cpu: "4", memory: 16Gi, pods: "110"}}
---
apiVersion: v1
kind: Node
metadata: {name: n3}
status: {allocatable: {cpu: "8", memory: 16Gi, pods: "110"}}
---
apiVersion: v1
kind: Pod
metadata: {name: runs, namespace: science}
spec: {schedulerName: fluence, nodeName: n1, containers: [{name: c, image: i, resources: {requests: {cpu: "3"}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: train-0, namespace: science}
spec: {schedulerName: fluence, containers: [{name: c, image: i, resources: {requests: {cpu: "2"}}}]}
"""


def test_the_how_to_shows_the_summary_of_many_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node, full = (part for part in AS_IN_THE_HOW_TO.split("---")[0::4])
    gang = [full.replace("train-0", f"train-{index}").replace('"2"', '"8"') for index in range(20)]
    small = [node.replace("n1", f"n{index}") for index in range(1, 301)]
    large = [node.replace("n1", f"n{index}").replace('cpu: "4"', 'cpu: "16"') for index in range(301, 304)]
    tainted = [
        node.replace("n1}", f"n{index}}}\nspec: {{taints: [{{key: team, value: x, effect: NoSchedule}}]}}")
        for index in range(304, 501)
    ]
    (tmp_path / "c.yaml").write_text("\n---".join([*small, *large, *tainted, *gang]))
    assert main(["explain", str(tmp_path / "c.yaml")]) == 0
    summary, _, _ = capsys.readouterr().out.partition("\ntime: ")
    assert f"```\n{summary.rstrip()}\n```" in HOW_TO.read_text()


UNSERVED = "no profile has schedulerName default-scheduler; set spec.schedulerName to fluence, or add a profile"


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "c.yaml").write_text(CLUSTER)
    return str(tmp_path / "c.yaml")


def explained(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["explain", *arguments, "-o", "json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_the_answer_has_each_pending_pod_with_each_node_and_no_running_pod(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = explained(capsys, file)
    assert [pod["name"] for pod in answer["pods"]] == ["gated", "grouped", "large", "plain", "quantum", "theirs"]
    for pod in answer["pods"]:
        assert set(pod) - {"fitsIf", "schedulerName"} == {"namespace", "name", "reason", "summary", "nodes"}
        assert list(pod["nodes"]) == ["open", "tainted"]


def test_the_summary_counts_the_nodes_of_each_reason(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    summaries = {pod["name"]: pod["summary"] for pod in explained(capsys, file)["pods"]}
    assert summaries["large"] == "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint(s)."
    assert summaries["plain"] == "1/2 nodes are available: 1 node(s) had untolerated taint(s)."


def test_a_node_that_fits_has_a_score_and_others_have_a_plugin_and_a_reason(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for pod in explained(capsys, file)["pods"]:
        for verdict in pod["nodes"].values():
            if verdict["fits"] is True:
                assert set(verdict) == {"fits", "score", "scores"}
                assert isinstance(verdict["score"], int)
            else:
                assert set(verdict) == {"fits", "plugin", "reason", "fitsIf"}
                assert verdict["fits"] is False
                assert verdict["plugin"] in BUILTIN
                assert verdict["reason"]


def test_the_first_plugin_in_kube_schedulers_order_is_named(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    pods = {pod["name"]: pod["nodes"] for pod in explained(capsys, file)["pods"]}
    assert {node: verdict["plugin"] for node, verdict in pods["large"].items()} == {
        "open": "NodeResourcesFit", "tainted": "TaintToleration",
    }  # fmt: skip
    assert pods["large"]["tainted"]["reason"] == "node(s) had untolerated taint(s)"
    assert (pods["plain"]["open"]["fits"], pods["plain"]["tainted"]["plugin"]) == (True, "TaintToleration")


def test_the_reason_is_the_refusal_of_the_pod_as_a_whole_or_null(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    reasons = {pod["name"]: pod["reason"] for pod in explained(capsys, file)["pods"]}
    assert (reasons["plain"], reasons["large"]) == (None, None)
    assert reasons["theirs"] == UNSERVED
    assert "later" in reasons["gated"]
    assert "PodGroup default/nowhere" in reasons["grouped"]
    assert "qpu" in reasons["quantum"]


def test_a_refusal_of_the_graph_leaves_the_nodes_verdicts_unchanged(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """No graph has the type, so the graph refuses the pod; each node still has kube-scheduler's verdict."""
    (quantum,) = explained(capsys, file, "--pod", "default/quantum")["pods"]
    assert quantum["reason"] is not None
    assert {node: verdict["plugin"] for node, verdict in quantum["nodes"].items()} == {
        "open": "NodeResourcesFit", "tainted": "TaintToleration",
    }  # fmt: skip


def test_a_pod_of_another_scheduler_is_evaluated_alone(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = explained(capsys, file)
    pods = {pod["name"]: pod for pod in answer["pods"]}
    assert pods["theirs"]["schedulerName"] == "default-scheduler"
    assert pods["theirs"]["nodes"] == pods["plain"]["nodes"]
    assert "schedulerName" not in pods["plain"]
    assert explained(capsys, file, "--pod", "default/theirs")["pods"] == [pods["theirs"]]
    assert main(["explain", file]) == 0
    assert f"default/theirs: {UNSERVED}\n" in capsys.readouterr().out


@pytest.mark.parametrize(("pod", "problem"), [
    ("default/runs", "already on node open; name a pending pod"),
    ("plain", "no pending pod with this namespace and name; did you mean default/plain?"),
    ("default/plane", "no pending pod with this namespace and name; did you mean default/plain?"),
    ("", "no pending pod with this namespace and name; write NAMESPACE/NAME"),
    ("default/zzz", "no pending pod with this namespace and name; name a pending pod, such as default/gated, "
     "default/grouped, default/large"),
])  # fmt: skip
def test_a_pod_that_is_not_pending_is_an_error_of_one_line(
    file: str, pod: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", file, "--pod", pod]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"fluence: --pod {pod}: {problem}\n")
