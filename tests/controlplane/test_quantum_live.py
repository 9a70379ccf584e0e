"""Producers and consumers on a real control plane: the real Job controller, the webhook, and the shipped rights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import yaml

from .harness import SCHEDULER
from .invariants import Manifest, condition, is_bound
from .quantum_world import GATE, IMAGE, JOBS, PREFIX, Pods, job, option, webhook
from .scenarios_world import EXAMPLES, Scenario, pod_spec

RESOURCES = "resources: [{type: qpu, name: aurora, attributes: {region: here}}]\n"
TWO = """
resources:
  - {type: qpu, name: aurora, attributes: {region: here}}
  - {type: qpu, name: borealis, attributes: {region: there}}
"""
MADE = {"makePodGroups": True}


@pytest.fixture
def quantum(scenario: Scenario, tmp_path: Path) -> Iterator[Scenario]:
    with webhook(scenario.plane, tmp_path, RESOURCES), option(scenario.plane):
        yield scenario


def pods_of(scenario: Scenario) -> Pods:
    return Pods(scenario.plane, scenario.namespace, lambda what, true: scenario.until(what, true, 30))


def create_job(scenario: Scenario, name: str, pods: int, **changes: Any) -> None:
    scenario.plane.create(job(name, scenario.namespace, pods, **changes))


def of_job(pods: list[Manifest], name: str) -> list[Manifest]:
    return [pod for pod in pods if pod["metadata"]["labels"]["job-name"] == name]


def env_of(pod: Manifest) -> dict[str, Any]:
    return {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]}


def min_counts(scenario: Scenario) -> dict[str, int]:
    items = scenario.plane.request("GET", scenario._groups)[1]["items"]
    return {group["metadata"]["name"]: group["spec"]["schedulingPolicy"]["gang"]["minCount"] for group in items
            if group["metadata"]["name"].startswith("fluence-")}  # fmt: skip


def test_a_job_lives_through_restarts_from_its_producers_start_to_its_end(quantum: Scenario) -> None:
    quantum.add_node(cpu=4, devices=4)
    scheduler = quantum.run(replace(quantum.settings, resources=RESOURCES, arguments=MADE))
    pods = pods_of(quantum)
    create_job(quantum, "vqe", 4, labels={f"{PREFIX}observe": "true"})
    _, consumers = pods.roles(3)
    producer = pods.bound_producer()
    assert min_counts(quantum) == {"fluence-vqe-producer": 1}
    assert producer["metadata"]["annotations"][f"{PREFIX}backend"] == "aurora"
    assert [each["image"] for each in producer["spec"]["initContainers"]] == [IMAGE]
    assert env_of(producer)["FLUENCE_COORDINATION_ROLE"] == "producer"
    for pod in consumers:
        assert pod["spec"]["schedulingGates"] == [{"name": GATE}]
        assert "fluxion.flux-framework.org/qpu" not in pod["spec"]["containers"][0]["resources"]["requests"]
        assert "initContainers" not in pod["spec"]
    scheduler.kill()
    pods.set_phase(producer, "Running")
    assert len(pods.gated()) == 3
    quantum.tend()
    scheduler.wait_ready()
    bound = pods.bound_consumers(3)
    assert min_counts(quantum) == {"fluence-vqe-producer": 1, "fluence-vqe": 3}
    for pod in bound:
        said = pod["metadata"]["annotations"]
        assert (said[f"{PREFIX}backend"], said[f"{PREFIX}attr-region"]) == ("aurora", "here")
        assert env_of(pod)["FLUENCE_COORDINATION_ROLE"] == "consumer"
    assert quantum.wait_event(bound[0]["metadata"]["name"], "ProducerRuns")["note"].startswith("the producer runs")
    scheduler.kill()
    for pod in pods.all():
        pods.set_phase(pod, "Succeeded")
    quantum.tend()
    scheduler.wait_ready()
    path = f"{JOBS}/{quantum.namespace}/jobs/vqe"
    quantum.until("the Job's end", lambda: condition(quantum.plane.request("GET", path)[1], "Complete"))
    quantum.plane.request("DELETE", f"{path}?propagationPolicy=Background")
    quantum.until("the end of pods and groups", lambda: not pods.all() and not min_counts(quantum))
    quantum.check_places()


def test_a_producer_that_fails_is_made_anew_and_its_consumers_wait_for_that_one(quantum: Scenario) -> None:
    quantum.add_node(cpu=4, devices=4)
    scheduler = quantum.run(replace(quantum.settings, resources=RESOURCES))
    pods = pods_of(quantum)
    create_job(quantum, "vqe", 3, backoffLimit=3)
    first = pods.bound_producer()
    pods.roles(2)
    pods.set_phase(first, "Failed")
    second = quantum.until("another producer", lambda: next(
        (pod for pod in pods.of_role("producer") if pod["metadata"]["name"] != first["metadata"]["name"]
         and is_bound(pod)), None), 60)  # fmt: skip
    assert len(pods.gated()) == 2
    pods.set_phase(second, "Running")
    late, _ = pods.bound_consumers(2)
    quantum.plane.request("DELETE", f"{pods.path}/{late['metadata']['name']}")
    pods.bound_consumers(2)  # the Job's replacement finds its producer running
    ungated = 'fluence_consumers_total{result="ungated"}'
    quantum.until("the response to the last gate's removal", lambda: scheduler.metrics()[ungated] == 3)
    assert scheduler.metrics()['fluence_consumers_total{result="deleted"}'] == 0
    quantum.check_places()


def test_who_waits_for_a_submission_learns_its_id(quantum: Scenario) -> None:
    quantum.add_node(cpu=2, devices=2)
    quantum.run(replace(quantum.settings, resources=RESOURCES))
    pods = pods_of(quantum)
    create_job(quantum, "vqe", 2, annotations={f"{PREFIX}depends-on-kind": "quantum-submit"})
    producer = pods.bound_producer()
    pods.set_phase(producer, "Running")
    create_job(quantum, "other", 2)  # the scheduler opens its gate after it has checked the first producer
    other = quantum.until(
        "the other's producer", lambda: next(iter(of_job(pods.of_role("producer"), "other")), None), 30
    )
    pods.set_phase(other, "Succeeded")
    pods.roles(2)  # the live producer, and the consumers of both Jobs
    quantum.until("one open gate", lambda: len(pods.gated()) == 1, 30)
    pods.annotate(producer, quantum_job_id="task-7")
    quantum.until("no gate", lambda: not pods.gated(), 30)
    consumers = of_job(pods.of_role("consumer"), "vqe")
    reported = [pod["metadata"]["annotations"].get(f"{PREFIX}quantum-job-id") for pod in consumers]
    assert reported == ["task-7"]


def test_independent_pods_have_a_device_each_and_start_together_by_their_label(quantum: Scenario) -> None:
    quantum.add_node(cpu=1, devices=2)
    quantum.run(replace(quantum.settings, resources=TWO))
    labels, annotations = {f"{PREFIX}group": "both"}, {f"{PREFIX}coordination": "independent"}
    create_job(quantum, "two", 2, completionMode="NonIndexed", labels=labels, annotations=annotations)
    pods = pods_of(quantum)
    names = pods.names(2)
    assert not pods.of_role("producer")
    assert not pods.gated()
    quantum.wait_refused(names[0])
    assert not any(is_bound(pod) for pod in pods.all())
    quantum.add_node(cpu=1, devices=2)
    quantum.wait_bound(*names)
    backends = {pod["metadata"]["annotations"][f"{PREFIX}backend"] for pod in pods.all()}
    assert backends == {"aurora", "borealis"}


def test_a_deployments_pods_start_together_and_it_grows_without_a_rollout(quantum: Scenario) -> None:
    quantum.add_node(cpu=2, devices=0)
    quantum.run()
    labels = {"app": "workers", f"{PREFIX}group": "workers"}
    spec = {"replicas": 3, "selector": {"matchLabels": {"app": "workers"}},
            "template": {"metadata": {"labels": labels}, "spec": pod_spec()}}  # fmt: skip
    quantum.plane.create({"apiVersion": "apps/v1", "kind": "Deployment", "spec": spec,
                          "metadata": {"name": "workers", "namespace": quantum.namespace}})  # fmt: skip
    pods = pods_of(quantum)
    names = pods.names(3)
    quantum.wait_refused(names[0])
    assert not any(is_bound(pod) for pod in pods.all())
    quantum.add_node(cpu=2, devices=0)
    quantum.wait_bound(*names)
    path = f"/apis/apps/v1/namespaces/{quantum.namespace}/deployments/workers"
    quantum.plane.request("PATCH", f"{path}/scale", {"spec": {"replicas": 4}})
    quantum.until("a fourth pod", lambda: len([pod for pod in pods.all() if is_bound(pod)]) == 4, 30)
    assert {pod["metadata"]["annotations"][f"{PREFIX}group-size"] for pod in pods.all()} == {"3"}
    assert set(names) <= {pod["metadata"]["name"] for pod in pods.all()}, "nothing was rolled out"


def test_what_asks_for_it_and_cannot_have_it_is_refused_by_the_field(quantum: Scenario) -> None:
    path = f"{JOBS}/{quantum.namespace}/jobs"
    for changes, field in (
        ({"completions": 5}, "spec.completions"),
        ({"completionMode": "NonIndexed"}, "spec.completionMode"),
        ({"annotations": {f"{PREFIX}coordination": "scatter"}}, f"{PREFIX}coordination"),
        ({"labels": {f"{PREFIX}observe": "maybe"}}, f"{PREFIX}observe"),
    ):
        status, answer = quantum.plane.request("POST", path, job("no", quantum.namespace, 3, **changes))
        assert status == HTTPStatus.FORBIDDEN
        assert field in answer["message"]


def test_who_asks_waits_for_the_webhook_and_nobody_else_does(scenario: Scenario, tmp_path: Path) -> None:
    with webhook(scenario.plane, tmp_path, RESOURCES) as replica:
        replica.kill()
        path = f"{JOBS}/{scenario.namespace}/jobs"
        status, answer = scenario.plane.request("POST", path, job("vqe", scenario.namespace, 2))
        assert status == HTTPStatus.INTERNAL_SERVER_ERROR
        assert "quantum.fluence.flux-framework.org" in answer["message"]
        other = job("other", scenario.namespace, 2)
        other["spec"]["template"]["metadata"] = {}
        assert scenario.plane.request("POST", path, other)[0] == HTTPStatus.CREATED


def test_without_the_right_to_open_gates_consumers_are_told_and_with_it_they_go(
    scenario: Scenario, tmp_path: Path
) -> None:
    scenario.add_node(cpu=2, devices=2)
    scenario.run(replace(scenario.settings, resources=RESOURCES))
    pods = pods_of(scenario)
    with webhook(scenario.plane, tmp_path, RESOURCES):
        create_job(scenario, "vqe", 2)
        pods.roles(1)
        pods.set_phase(pods.bound_producer(), "Running")
        (waiting,) = pods.gated()
        note = scenario.wait_event(waiting["metadata"]["name"], "ProducerNotFollowed")["note"]
        assert "403" in note
        assert "docs/how-to/quantum-gangs.md" in note
        with option(scenario.plane):
            pods.bound_consumers(1)
            producer = pods.bound_producer()
            path = f"{pods.path}/{producer['metadata']['name']}"
            containers = [each | {"image": "example.com/other"} for each in producer["spec"]["containers"]]
            body: Manifest = {"spec": {"containers": containers}}
            label = {"metadata": {"labels": {"a": "b"}}}
            scenario.until("the policy", lambda: scenario.plane.request(
                "PATCH", f"{path}?dryRun=All", label, user=SCHEDULER)[0] == HTTPStatus.FORBIDDEN)  # fmt: skip
            status, answer = scenario.plane.request("PATCH", path, body, user=SCHEDULER)
            assert status == HTTPStatus.FORBIDDEN
            assert "fluence-opens-gates" in answer["message"]
            status, answer = scenario.plane.request("PATCH", path, label, user=SCHEDULER)
            assert status == HTTPStatus.FORBIDDEN


def test_consumers_that_nobody_made_go_when_their_producer_does_not_come(quantum: Scenario) -> None:
    quantum.add_node(cpu=2, devices=2)
    quantum.run(replace(quantum.settings, resources=RESOURCES))
    pods = pods_of(quantum)
    index = "batch.kubernetes.io/job-completion-index"
    for number in range(2):
        said = {index: str(number), f"{PREFIX}group-size": "2", f"{PREFIX}coordination": "shared"}
        metadata = {"name": f"qgang-{number}", "namespace": quantum.namespace, "annotations": said,
                    "labels": {f"{PREFIX}group": "qgang"}}  # fmt: skip
        body = {"apiVersion": "v1", "kind": "Pod", "spec": pod_spec(device=True), "metadata": metadata}
        quantum.plane.create(body)
    producer = pods.bound_producer()
    (waiting,) = pods.gated()
    pods.set_phase(producer, "Failed")
    quantum.until("the consumer's end", lambda: not pods.of_role("consumer"), 120)
    assert quantum.wait_event(waiting["metadata"]["name"], "ProducerGone")


def test_the_example_runs_on_an_api_server(quantum: Scenario, tmp_path: Path) -> None:
    quantum.add_node(cpu=4, devices=4)
    quantum.add_node(cpu=4, devices=4)
    folder = EXAMPLES / "09-quantum-gang"
    quantum.run(replace(quantum.settings, resources=(folder / "resources.yaml").read_text()))
    for workload in yaml.safe_load_all((folder / "apply" / "workloads.yaml").read_text()):
        workload["metadata"]["namespace"] = quantum.namespace
        quantum.plane.create(workload)
    pods = pods_of(quantum)
    pods.roles(3)
    quantum.until("five bound pods", lambda: len([pod for pod in pods.all() if is_bound(pod)]) == 5, 30)
    producer = pods.bound_producer()
    assert producer["metadata"]["annotations"][f"{PREFIX}backend"] == "aurora"
    pods.set_phase(producer, "Running")
    reported = {pod["metadata"]["annotations"][f"{PREFIX}attr-region"] for pod in pods.bound_consumers(3)}
    assert reported == {"us-east-1"}
    quantum.check_places()
