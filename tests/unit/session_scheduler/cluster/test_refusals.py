"""Invalid manifests: each is rejected in one line with file, object, field and remedy."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from session_scheduler.cluster import documents, workloads
from session_scheduler.cluster.errors import ManifestError
from session_scheduler.cluster.manifests import load_manifests
from session_scheduler.model.requests import pod_requests

from .loading import container, load, node, pod, refusal, selecting, template, workload

POD_TERM = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def node_term(key: str, operator: str, *values: str) -> dict[str, Any]:
    term = {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [term]}}}}


def anti(term: dict[str, Any]) -> dict[str, Any]:
    return {"affinity": {"podAntiAffinity": {REQUIRED: [term]}}}


def spread(**fields: Any) -> dict[str, Any]:
    constraint = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", **fields}
    return {"topologySpreadConstraints": [constraint]}


def controller(spec: dict[str, Any]) -> dict[str, Any]:
    return workload("ReplicationController", spec)


def group(policy: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "metadata": {"name": "g"},
            "spec": {"schedulingPolicy": policy, **spec}}  # fmt: skip


def together(*keys: str) -> dict[str, Any]:
    return group({"basic": {}}, schedulingConstraints={"topology": [{"key": key} for key in keys]})


@pytest.mark.parametrize(
    ("spec", "field", "problem"),
    [
        (container(resources={"requests": {"cpu": "1 core"}}), "containers[0].resources.requests.cpu",
         "is not a valid quantity"),
        (container(resources={"limits": {"memory": "-1Gi"}}), "containers[0].resources.limits.memory", "negative"),
        (container(resources={"requests": {"a.b/gpu": "500m"}}), "resources.requests[a.b/gpu]",
         "is not an integer: extended resources come in whole units"),
        (container(resources={"requests": {"cpu": 2}, "limits": {"cpu": 1}}), "requests.cpu", "more than the limit"),
        (container(resources={"requests": {"memmory": "1Gi"}}), "containers[0].resources.requests.memmory",
         "unknown resource; did you mean memory?"),
        (container(resources={"limits": {"CPU": 1}}), "limits.CPU", "unknown resource; did you mean cpu?"),
        (container(resources={"limits": {"gpu": 1}}), "limits.gpu",
         "unknown resource; use cpu, memory, ephemeral-storage, hugepages-SIZE or DOMAIN/NAME"),
        (container(resources={"requests": {"a b/gpu": 1}}), "requests[a b/gpu]", "is not a valid key"),
        (container(resources={"limits": {"requests.nvidia.com/gpu": 1}}), "limits[requests.nvidia.com/gpu]",
         "unknown resource; did you mean nvidia.com/gpu?"),
        ({"overhead": {"mem": "1Gi"}}, "spec.overhead.mem", "unknown resource"),
        (container(resources={"requests": {"a.b/gpu": 1}}), "limits[a.b/gpu]",
         "is missing; set it to 1, the request: this resource cannot be overcommitted"),
        (container(resources={"requests": {"hugepages-2Mi": "4Mi"}}), "limits.hugepages-2Mi", "is missing"),
        (container(resources={"requests": {"a.b/gpu": 1}, "limits": {"a.b/gpu": 2}}), "requests[a.b/gpu]",
         "1 differs from the limit 2; make them equal"),
        (container(resources={"requests": {"cpu": [1]}}), "requests.cpu", "not a list"),
        (container(resources=["cpu"]), "spec.containers[0].resources", "must be a mapping, not a list"),
        ({"overhead": {"cpu": "x"}}, "spec.overhead.cpu", "is not a valid quantity"),
        ({"containers": {}}, "spec.containers", "must be a list of mappings, not a mapping"),
        ({"containers": []}, "spec.containers", "is empty; add at least one, for example"),
        ({"containers": None}, "spec.containers", "is empty; add at least one, for example"),
        ({"containers": [{"image": "i"}]}, "spec.containers[0].name", "is missing; name the container"),
        ({"containers": [{"name": "A_b"}]}, "spec.containers[0].name", "not a valid container name"),
        ({"containers": [{"name": "a"}, {"name": "a"}]}, "spec.containers[1].name", "already the name of"),
        ({**container(), "initContainers": [{"name": "c"}]}, "spec.initContainers[0].name", "spec.containers[0]"),
        ({"containers": [None]}, "spec.containers[0]", "must be a mapping, not null"),
        (container(ports=[{"hostPort": 70000}]), "ports[0].hostPort", "use 1 to 65535"),
        (container(ports=[{"hostPort": "80"}]), "ports[0].hostPort", "without quotes"),
        (container(ports=[{"hostPort": 80, "hostIP": "300.1.1.1"}]), "ports[0].hostIP", "not a valid IP address"),
        (container(ports=[{"protocol": "ICMP"}]), "ports[0].protocol", "TCP, UDP, SCTP"),
        ({**container(ports=[{"containerPort": 1, "hostPort": 2}]), "hostNetwork": True}, "hostPort",
         "2 must equal the containerPort 1 because hostNetwork is true"),
        ({"nodeSelector": {"disk": True}}, "spec.nodeSelector.disk", 'quote it, as "true"'),
        ({"nodeSelector": {"a b": "x"}}, "spec.nodeSelector.a b", "is not a valid key"),
        (node_term("a", "in", "x"), "matchExpressions[0].operator", "use In, NotIn, Exists, DoesNotExist, Gt, Lt"),
        (node_term("a", "In"), "matchExpressions[0].values", "at least one value"),
        (node_term("a", "Exists", "x"), "matchExpressions[0].values", "takes no values"),
        (node_term("a", "Gt", "x"), "matchExpressions[0].values", "takes one integer, such as"),
        (node_term("a", "Lt", "1", "2"), "matchExpressions[0].values", "takes one integer, such as"),
        (node_term("-a", "Exists"), "matchExpressions[0].key", "is not a valid key"),
        ({"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": []}}}}, "nodeSelectorTerms", "is empty"),
        ({"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [
            {"matchFields": [{"key": "spec.x", "operator": "In", "values": ["n"]}]}]}}}}, "key", "metadata.name"),
        ({"affinity": {"nodeAffinity": {PREFERRED: [{"weight": 0, "preference": {}}]}}}, "weight", "use 1 to 100"),
        ({"affinity": {"nodeAffinity": {PREFERRED: [{"weight": 1}]}}}, f"{PREFERRED}[0].preference", "is missing"),
        (anti({"labelSelector": {}}), f"podAntiAffinity.{REQUIRED}[0].topologyKey", "is missing"),
        (anti({**POD_TERM, "labelSelector": {"matchLabels": {"a": 1}}}), "labelSelector.matchLabels.a", "quote it"),
        (anti({**POD_TERM, "labelSelector": {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}}),
         "labelSelector.matchExpressions[0].operator", "is not a valid operator"),
        ({"affinity": {"podAffinity": {PREFERRED: [{"weight": True, "podAffinityTerm": {}}]}}}, "weight",
         "must be a whole number, not true"),
        (anti({**POD_TERM, "namespaces": "x"}), "namespaces", "must be a list of strings, not 'x'"),
        ({"affinity": {"podAffinity": {REQUIRED: POD_TERM}}}, f"podAffinity.{REQUIRED}",
         "must be a list of mappings, not a mapping"),
        ({"affinity": {"podAffinity": {PREFERRED: [{"weight": 1}]}}}, "podAffinityTerm", "is missing"),
        (spread(maxSkew=0), "topologySpreadConstraints[0].maxSkew", "at least 1"),
        (spread(whenUnsatisfiable="Never"), "whenUnsatisfiable", "DoNotSchedule, ScheduleAnyway"),
        (spread(labelSelector={"matchExpressions": [{"key": "a"}]}), "matchExpressions[0].operator", "is missing"),
        ({"tolerations": [{"key": "a", "operator": "Exists", "value": "x"}]}, "tolerations[0].value", "remove it"),
        ({"tolerations": [{"operator": "Equal"}]}, "tolerations[0].operator", "must be Exists"),
        ({"tolerations": [{"key": "a", "effect": "Never"}]}, "tolerations[0].effect", "NoSchedule"),
        ({"tolerations": [{"key": "a", "tolerationSeconds": 5}]}, "tolerations[0].effect", "NoExecute"),
        ({"schedulingGates": [{"name": "a b"}]}, "schedulingGates[0].name", "is not a valid key"),
        ({"schedulingGates": [{}]}, "schedulingGates[0].name", "is missing"),
        ({"schedulingGroup": {"podGroupName": "G"}}, "schedulingGroup.podGroupName", "is not a valid name"),
        ({"priorityClassName": "absent"}, "spec.priorityClassName",
         "no PriorityClass with name 'absent' was found; add its manifest"),
        ({"priority": "high"}, "spec.priority", "must be a whole number, not 'high'"),
    ],
)  # fmt: skip
def test_the_error_for_an_invalid_pod_names_the_field(spec: dict[str, Any], field: str, problem: str) -> None:
    text = refusal(pod(spec=spec))
    assert text.startswith("<stdin>: Pod p: spec.")
    assert f"{field}: " in text
    assert problem in text


@pytest.mark.parametrize(
    ("metadata", "field", "problem"),
    [
        ({"name": ""}, "metadata.name", "is missing"),
        ({"name": None}, "metadata.name", "is missing"),
        ({"name": 5}, "metadata.name", 'quote it, as "5"'),
        ({"name": "No_Name"}, "metadata.name", "lower-case"),
        ({"name": "x" * 254}, "metadata.name", "up to 253"),
        ({"namespace": "a.b"}, "metadata.namespace", "is not a valid namespace"),
        ({"labels": {"app": 1}}, "metadata.labels.app", 'quote it, as "1"'),
        ({"labels": {"app": "a b"}}, "metadata.labels.app", "is not a valid label value"),
        ({"labels": {"example.com/": "a"}}, "metadata.labels[example.com/]", "is not a valid key"),
        ({"labels": ["app"]}, "metadata.labels", "must be a mapping"),
        ({"annotations": {"a": "x" * 300_000}}, "metadata.annotations", "in total, more than 262144"),
        ({"creationTimestamp": "yesterday"}, "metadata.creationTimestamp", "is not a valid time"),
    ],
)
def test_the_error_for_invalid_metadata_names_the_field(metadata: dict[str, Any], field: str, problem: str) -> None:
    text = refusal({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", **metadata}})
    assert f": {field}: " in text
    assert problem in text


@pytest.mark.parametrize(
    ("manifest", "field", "problem"),
    [
        (node("n", taints=[{"key": "a", "effect": "Sometimes"}]), "spec.taints[0].effect", "NoSchedule"),
        (node("n", taints=[{"effect": "NoSchedule"}]), "spec.taints[0].key", "is missing"),
        ({**node("n"), "status": {"allocatable": {"cpu": "4 cores"}}}, "status.allocatable.cpu",
         "is not a valid quantity"),
        (group({}), "spec.schedulingPolicy", "exactly one of gang and basic"),
        (group({"gang": {"minCount": 1}, "basic": {}}), "spec.schedulingPolicy", "exactly one"),
        (group({"gang": {"minCount": 0}}), "spec.schedulingPolicy.gang.minCount", "must be at least 1, not 0"),
        (group({"gang": {}}), "spec.schedulingPolicy.gang.minCount", "is missing"),
        (together("no key!"), "spec.schedulingConstraints.topology[0].key", "is not a valid key"),
        (together(""), "spec.schedulingConstraints.topology[0].key", "is not a valid key"),
        (together("zone", "rack"), "spec.schedulingConstraints.topology[1]", "remove this one"),
        ({"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup", "metadata": {"name": "g"},
          "spec": {"minMember": 0}}, "spec.minMember", "must be at least 1, not 0"),
        ({"apiVersion": "v1", "kind": "Deployment", "metadata": {"name": "d"}}, "apiVersion", "use apps/v1"),
        ({"apiVersion": "extensions/v1beta1", "kind": "Deployment", "metadata": {"name": "d"}}, "apiVersion",
         "apps/v1"),
        ({"apiVersion": "scheduling.k8s.io/v1alpha9", "kind": "PodGroup", "metadata": {"name": "d"}}, "apiVersion",
         "scheduling.k8s.io/v1alpha2 or scheduling.x-k8s.io/v1alpha1"),
        ({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "d"}, "value": 10**9 + 1},
         "value", "1000000000"),
        ({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "d"}, "value": 2**31},
         "value", "more than 32 bits"),
        ({"metadata": {"name": "d"}}, "kind", "is missing"),
        ({"kind": "Pod", "metadata": {"name": "d"}}, "apiVersion", "is missing"),
        (workload("Deployment", {"template": template()}), "spec.selector", "is missing"),
        (workload("Deployment", {"selector": {"matchLabels": {"app": "w"}}}), "spec.template", "is missing"),
        (workload("Deployment", selecting(selector={})), "spec.selector", "is empty"),
        (workload("Deployment", selecting(template=template({"app": "x"}))), "spec.selector", "make them equal"),
        (workload("Deployment", selecting(selector={"matchExpressions": [{"key": "app", "operator": "Is"}]})),
         "spec.selector.matchExpressions[0].operator", "is not a valid operator"),
        (workload("Deployment", selecting(replicas=-1)), "spec.replicas", "out of range"),
        (workload("Deployment", selecting(replicas=10**12)), "spec.replicas", "more than 32 bits"),
        (controller({"template": template(), "selector": {"app": "x"}}), "spec.selector", "make them equal"),
        (controller({"template": template(), "selector": {"a b": "x"}}), "spec.selector.a b", "no"),
        (controller({"template": {"spec": container()}}), "spec.selector", "label the template"),
        (controller({"template": template(), "replicas": -1}), "spec.replicas", "out of range"),
        (controller({"template": template(containers=[])}), "spec.template.spec.containers", "is empty"),
        (workload("StatefulSet", selecting(replicas="3")), "spec.replicas", "without quotes"),
        (workload("Deployment", selecting(template=template(priorityClassName="no"))), "spec.priorityClassName", "no"),
        (workload("DaemonSet", selecting(template=template(tolerations=[{"effect": "x"}]))),
         "spec.template.spec.tolerations[0].operator", "must be Exists"),
        (workload("Job", {"template": template()}), "spec.template.spec.restartPolicy", "OnFailure or Never"),
        (workload("CronJob", {"jobTemplate": {"spec": {"template": template()}}}),
         "spec.jobTemplate.spec.template.spec.restartPolicy", "OnFailure or Never"),
        (workload("JobSet", {"replicatedJobs": [{"name": "a", "template": {"spec": {
            "parallelism": -1, "template": template(restartPolicy="Never")}}}]}),
         "spec.replicatedJobs[0].template.spec.parallelism", "out of range"),
        (workload("LeaderWorkerSet", {"leaderWorkerTemplate": {"size": 0, "workerTemplate": template()}}),
         "spec.leaderWorkerTemplate.size", "out of range"),
    ],
)  # fmt: skip
def test_the_error_for_other_invalid_kinds_names_the_field(manifest: dict[str, Any], field: str, problem: str) -> None:
    text = refusal(*[manifest] * 1)
    assert f": {field}: " in text
    assert problem in text


def test_a_template_without_containers_is_refused() -> None:
    text = refusal(workload("Deployment", selecting(template=template(containers=[]))))
    assert "Deployment w: spec.template.spec.containers: is empty; add at least one" in text


def test_two_objects_of_a_kind_and_name_are_refused_naming_both_files(tmp_path: Path) -> None:
    for file in ("one.yaml", "two.yaml"):
        (tmp_path / file).write_text(json.dumps(pod()))
    with pytest.raises(ManifestError) as raised:
        load_manifests([str(tmp_path)])
    assert "one.yaml" in str(raised.value)
    assert "two.yaml" in str(raised.value)
    assert "'p' already exists in" in refusal(pod(), pod())


def test_two_objects_of_a_kind_and_uid_are_refused_naming_both() -> None:
    text = refusal(pod("one", uid="u"), node("n"), pod("two", uid="u"))
    assert text == (
        "<stdin>: Pod two: metadata.uid: 'u' is also the uid of Pod one in <stdin>; remove metadata.uid "
        "from one of them"
    )
    assert "metadata.uid" in refusal(node("m") | {"metadata": {"name": "m", "uid": "u"}}, node("n") | {
        "metadata": {"name": "n", "uid": "u"}})  # fmt: skip


def test_objects_of_two_kinds_may_share_a_uid() -> None:
    assert len(load(pod(uid="u"), node("n") | {"metadata": {"name": "n", "uid": "u"}}).objects) == 2


def test_a_pod_of_a_workload_may_not_have_the_name_of_another_pod() -> None:
    assert "'w-0' already exists in" in refusal(workload("StatefulSet", selecting()), pod("w-0"))


def test_all_workloads_together_make_a_bounded_number_of_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "MAX_REPLICAS", 5)
    spec = {"parallelism": 3, "template": template(restartPolicy="Never")}
    assert len(load(workload("Job", spec)).pods) == 3
    assert "create more than 5 pods" in refusal(*(workload("Job", spec, name=name) for name in ("a", "b")))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [", "line 2, column 1: is not valid YAML: "),
        ("- a", "expected a mapping"),
        ("just text", "expected a mapping"),
        ("{\"kind\": \"Pod\", \"kind\": \"Pod\"}", "line 1, column 17: key 'kind' appears twice"),
        ("kind: Pod\nkind: Pod\n", "line 2, column 1: key 'kind' appears twice"),
        ("{\"kind\": \"List\", \"apiVersion\": \"v1\", \"items\": [3]}", "items[0]: expected a mapping"),
        ("{\"kind\": \"List\", \"apiVersion\": \"v1\", \"items\": [null]}", "<stdin>: items[0]: expected a mapping"),
        ("{\"kind\": \"List\", \"apiVersion\": \"v1\", \"items\": {}}", "List (document 1): items: must be a list"),
        ("{\"kind\": \"PodList\", \"apiVersion\": \"v1\", \"items\": 3}", "PodList (document 1): items: must be"),
        ("kind: List\napiVersion: v1\n", "List (document 1): items: must be a list of objects; write one entry for"),
        ("kind: List\napiVersion: v1\nitems:\n- a: 1\n- \n", "(document 1, items[0]): kind: is missing"),
        ("kind: PodList\napiVersion: v1\nitems: [~]\n", "<stdin>: document 1, items[0]: expected a mapping"),
        ("{\"kind\": 3}", "kind: is missing"),
        ("kind: Pod\napiVersion: v1\nmetadata: text\n", "metadata: must be a mapping, not 'text'"),
        ("[" * 5000, "nested deeper than"),
        ("{\"a\":" * 5000, "nested deeper than"),
        ("{\"kind\": \"Pod\", \"apiVersion\": \"v1\", \"x\":" + "[" * 300 + "]" * 300 + "}", "nested deeper than"),
    ],
)  # fmt: skip
def test_a_text_that_is_not_a_manifest_is_an_error(text: str, problem: str) -> None:
    assert problem in refusal(text)


def test_broken_json_in_a_json_file_is_called_json(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    for text in ('{"kind": ', '{"kind": NaN}', '{"a": "\xff'):
        file.write_bytes(text.encode("latin-1"))
        with pytest.raises(ManifestError, match=r"x\.json: (line 1, column \d+: )?is not valid JSON: "):
            load_manifests([str(file)])


@pytest.mark.parametrize("null", ["", '"x": null, '])
@pytest.mark.parametrize("suffix", ["json", "yaml"])
@pytest.mark.parametrize("item", ["%s", '{"kind": "List", "apiVersion": "v1", "items": [%s]}'])
def test_a_number_with_thousands_of_digits_is_rejected(tmp_path: Path, item: str, suffix: str, null: str) -> None:
    manifest = json.dumps(pod(spec={"priority": 7})).replace("7", "9" * 6000).replace("{", "{" + null, 1)
    file = tmp_path / f"x.{suffix}"
    file.write_text(item % manifest)
    with pytest.raises(
        ManifestError,
        match=r"spec\.priority: is a number with more than 32 bits; write a smaller one$|digits; shorten it",
    ) as raised:
        load_manifests([str(file)])
    assert "sys." not in str(raised.value)


@pytest.mark.parametrize("amount", ["1e999", "9" * 60 + "E", "1e-999", 10**40])
def test_an_absurd_quantity_is_legal_and_counts_as_the_most_or_the_least_there_is(amount: str | int) -> None:
    capacity = dict.fromkeys(("cpu", "memory", "pods", "ephemeral-storage"), amount)
    loaded = load(pod(spec=container(resources={"requests": {"cpu": amount, "memory": amount}})),
                  node("n") | {"status": {"capacity": capacity}})  # fmt: skip
    assert pod_requests(loaded.pods[0])[0].keys() == {"cpu", "memory"}
    assert loaded.nodes[0].status.allocatable["cpu"] == amount


def test_the_error_for_an_unreadable_file_names_it(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"absent\.yaml: cannot be read: No such file"):
        load_manifests([str(tmp_path / "absent.yaml")])
    with pytest.raises(ManifestError, match="the directory contains no"):
        load_manifests([str(tmp_path)])
    with pytest.raises(ManifestError, match="is an empty name; name a file, a directory or -"):
        load_manifests([""])
    with pytest.raises(ManifestError, match="standard input can be read only once"):
        load_manifests(["-", "-"], io.BytesIO(b""))


def test_a_file_that_is_too_large_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_BYTES", 1 << 20)
    stream = io.BytesIO(b"#" * (3 << 20))
    with pytest.raises(ManifestError, match="larger than 1 MiB"):
        load_manifests(["-"], stream)
    assert stream.tell() == (1 << 20) + 1  # codespell:ignore tell
