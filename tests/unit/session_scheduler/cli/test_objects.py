"""Objects named as kubectl names them, and the cluster that is read for them."""

from __future__ import annotations

import json
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from session_scheduler.cli import main
from session_scheduler.cluster import kube_access
from session_scheduler.errors import InputError
from session_scheduler.model.objects import ObjectMeta, Pod
from session_scheduler.model.times import time_text
from session_scheduler.offline import live_reader
from session_scheduler.testing import pod

CLUSTER = """
apiVersion: v1
kind: List
items:
  - {apiVersion: v1, kind: Node, metadata: {name: n1}, status: {allocatable: {cpu: 4, pods: 9}}}
  - {apiVersion: v1, kind: Pod, metadata: {name: a, namespace: science}, spec: &spec {schedulerName: fluence, containers: [{name: c, image: i}]}}
  - {apiVersion: v1, kind: Pod, metadata: {name: b, namespace: science}, spec: *spec}
  - {apiVersion: v1, kind: Pod, metadata: {name: a}, spec: *spec}
  - {apiVersion: v1, kind: Pod, metadata: {name: other}, spec: {containers: [{name: c, image: i}]}}
  - {apiVersion: v1, kind: Pod, metadata: {name: placed}, spec: {schedulerName: fluence, nodeName: n1, containers: [{name: c, image: i}]}}
  - apiVersion: batch/v1
    kind: Job
    metadata: {name: train}
    spec: {parallelism: 2, completions: 2, template: {spec: {restartPolicy: Never, schedulerName: fluence, containers: [{name: c, image: i}]}}}
"""  # noqa: E501
GANG = """
apiVersion: v1
kind: List
items:
  - {apiVersion: scheduling.x-k8s.io/v1alpha1, kind: PodGroup, metadata: {name: training}, spec: {minMember: 1}}
  - apiVersion: v1
    kind: Pod
    metadata: {name: t, labels: {scheduling.x-k8s.io/pod-group: training}}
    spec: {schedulerName: fluence, containers: [{name: c, image: i}]}
"""
CONFIG = """
apiVersion: fluence.flux-framework.org/v1alpha1
kind: SchedulerConfiguration
profiles: [{plugins: [{name: fluence, enabled: false}]}]
"""
KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: here
contexts:
  - {name: here, context: {cluster: c, user: u, namespace: science}}
  - {name: there, context: {cluster: c, user: u}}
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "kubeconfig").write_text(KUBECONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    return tmp_path


def pods(words: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Namespace and name of each pod that `explain` answers for."""
    assert main(["explain", *words.split(), "--config", "config.yaml", "-o", "json"]) == 0
    return [f"{each['namespace']}/{each['name']}" for each in json.loads(capsys.readouterr().out)["pods"]]


def refusal(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main([*words.split(), "--config", "config.yaml"]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("pod/a", ["default/a"]),
        ("Pod/a -n science", ["science/a"]),
        ("po/a pods/b --namespace science", ["science/a", "science/b"]),
        ("pod/other", ["default/other"]),
        ("pod/other pod/a", ["default/a", "default/other"]),
        ("pod/a --pod science/b", ["default/a", "science/b"]),
        ("job/train", ["default/train-0", "default/train-1"]),
        ("", ["default/a", "default/other", "default/train-0", "default/train-1", "science/a", "science/b"]),
    ],
)
def test_explain_answers_for_the_objects_that_are_named(
    words: str, expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert pods(f"{words} cluster.yaml", capsys) == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("pod/placed", "pod/placed: already on node n1"),
        ("pod/absent", "pod/absent: no pending pod with this namespace and name"),
        ("podgroup/a", "podgroup/a: no pending pods in namespace default"),
        ("job/train -n science", "job/train: no pending pods in namespace science"),
    ],
)
def test_an_object_without_a_waiting_pod_is_refused(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"fluence: {message}" in refusal(f"explain {words} cluster.yaml", capsys)


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("explain job/trian", "did you mean job/train?"),
        ("explain jobs/train -n science", "did you mean jobs/train -n default?"),
        ("explain pod/b", "did you mean pod/b -n science?"),
        ("explain po/d -n science", "name another object, or another namespace with -n"),
        ("explain --pod science/othre", "did you mean default/other?"),
        ("explain --pod default/othre", "did you mean default/other?"),
        ("explain --pod default/b", "did you mean science/b?"),
        ("explain podgroup/train", "name another object, or another namespace with -n"),
        ("status job/tarin", "did you mean job/train?"),
        ("status pod/placd", "did you mean pod/placed?"),
        ("status podgroup/train", "name another object, or another namespace with -n"),
    ],
)
def test_a_miss_suggests_the_nearest_name_of_the_same_kind(
    words: str, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refusal(f"{words} cluster.yaml", capsys).endswith(f"; {remedy}\n")


def test_a_miss_suggests_a_pod_group(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "gang.yaml").write_text(GANG)
    assert refusal("explain podgroup/trainig gang.yaml", capsys).endswith("; did you mean podgroup/training?\n")


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("podgrup/g", "podgrup/g: no such file, and podgrup is not a type of object; did you mean podgroup/g?"),
        ("deploy/g", "deploy/g: no such file, and deploy is not a type of object; use pod, podgroup, job, replicaset, "
         "statefulset, daemonset, or a file"),
        ("jobs/g.yaml", "jobs/g.yaml: no pending pods in namespace default; name another object, or another namespace "
         "with -n"),
        ("work/g.yaml", "work/g.yaml: cannot be read: No such file or directory; name a readable file or directory, "
         "or -"),
    ],
)  # fmt: skip
def test_an_unknown_type_is_an_error_with_the_known_ones(
    word: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refusal(f"explain {word} cluster.yaml", capsys) == f"fluence: {message}\n"


def test_a_file_of_that_path_is_a_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "pod").mkdir()
    (folder / "pod" / "a").write_text(CLUSTER)
    assert len(pods("pod/a", capsys)) == 6


def test_status_shows_the_objects_that_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["pod/placed", "job/train", "cluster.yaml", "--config", "config.yaml", "-o", "json"]
    assert main(["status", *words]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in result["held"]] == ["placed"]
    assert [each["name"] for each in result["waiting"]] == ["train-0", "train-1"]
    assert "fluence: pod/b: no pods with a profile's schedulerName" in refusal("status pod/b cluster.yaml", capsys)


def test_without_files_the_cluster_is_read_for_objects_and_by_the_plugin_of_kubectl(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read: list[tuple[str | None, str | None, str]] = []

    async def nothing(kubeconfig: str | None, context: str | None, namespace: str, _: object) -> tuple[()]:
        read.append((kubeconfig, context, namespace))
        return ()

    monkeypatch.setattr(live_reader, "read_cluster", nothing)
    assert "pod/a: no pending pod with" in refusal("explain pod/a", capsys)
    assert main(["queues", "--context", "there", "--config", "config.yaml"], plugin=True) == 0
    assert read == [(None, None, "kube-system"), (None, "there", "kube-system")]
    assert "Missing argument 'FILE'" in refusal("queues", capsys)
    assert len(read) == 2


def test_a_cluster_is_read_with_the_namespace_and_the_plugins_of_the_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The namespace has the large plans; a plugin may read a kind of its own."""
    read: list[tuple[str, Collection[str]]] = []

    async def nothing(_: str | None, __: str | None, namespace: str, plugins: Collection[str]) -> tuple[()]:
        read.append((namespace, plugins))
        return ()

    monkeypatch.setattr(live_reader, "read_cluster", nothing)
    plugins = "[{name: NodeResourceTopologyMatch}, {name: fluence, enabled: false}]"
    Path("schedulers.yaml").write_text(
        "apiVersion: fluence.flux-framework.org/v1alpha1\nkind: SchedulerConfiguration\n"
        f"leaderElection: {{namespace: schedulers}}\nprofiles: [{{plugins: {plugins}}}]\n"
    )
    assert main(["queues", "--kubeconfig", "kubeconfig", "--config", "schedulers.yaml"]) == 0
    assert read == [("schedulers", {"NodeResourceTopologyMatch"})]


def test_ages_of_a_cluster_count_up_to_now(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    created = time_text(datetime.now(UTC) - timedelta(hours=5, minutes=7, seconds=30))

    async def one_pod(*_: object) -> tuple[Pod, ...]:
        return (replace(pod("old"), metadata=ObjectMeta(name="old", namespace="default", creation_timestamp=created)),)

    monkeypatch.setattr(live_reader, "read_cluster", one_pod)
    assert main(["status", "--kubeconfig", "kubeconfig", "--config", "config.yaml"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[4] == "5h7m"


@pytest.mark.parametrize(
    ("kubeconfig", "context", "expected"),
    [("kubeconfig", None, "science"), ("kubeconfig", "there", "default"), (None, None, "default")],
)
def test_the_namespace_is_that_of_the_context(kubeconfig: str | None, context: str | None, expected: str) -> None:
    assert kube_access.namespace_of(kubeconfig, context) == expected


def test_a_pods_own_namespace_is_used_in_a_pod(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "namespace").write_text("apart\n")
    monkeypatch.setattr(kube_access, "_ACCOUNT", folder)
    assert kube_access.namespace_of(None, None) == "apart"


@pytest.mark.parametrize("command", ["explain", "status"])
def test_a_namespace_without_an_object_is_rejected(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "cluster.yaml", "-n", "science"]) == 2
    assert capsys.readouterr().err == (
        "fluence: -n science: needs TYPE/NAME, such as pod/sampler; add one, or remove the option\n"
    )


def test_a_context_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="kubeconfig kubeconfig: "):
        kube_access.namespace_of("kubeconfig", "absent")
