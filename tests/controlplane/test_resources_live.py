"""`fluence run` while its resources file changes: pods keep their allocations, and waiting pods get new devices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from http import HTTPStatus
from pathlib import Path

from .harness import ADMIN, SCHEDULER
from .invariants import Manifest
from .scenarios_world import Scenario
from .scheduler_process import SchedulerProcess, kubeconfig_for

TWO = "resources: [{type: qpu, name: a, attributes: {region: east}}, {type: qpu, name: b}]\n"
_FPGA = "fluxion.flux-framework.org/fpga"


def write(scenario: Scenario, scheduler: SchedulerProcess, text: str) -> None:
    """Replace the replica's file, and wait until it was read."""
    before = scheduler.metrics()
    file = _file(scenario, scheduler)
    new = file.with_suffix(".new")
    new.write_text(text)
    os.replace(new, file)

    def looked() -> bool:
        now = scheduler.metrics()
        return any(now[f"fluence_resources_{name}"] != before[f"fluence_resources_{name}"]
                   for name in ("changes_total", "last_load_successful"))  # fmt: skip

    scenario.until("the file to be looked at", looked)


def _file(scenario: Scenario, scheduler: SchedulerProcess) -> Path:
    return scenario.folder / scenario.namespace / f"{scheduler.name}-resources.yaml"


def start(scenario: Scenario, text: str) -> SchedulerProcess:
    scheduler = scenario.new_scheduler()
    scheduler.settings = type(scheduler.settings)(**(vars(scheduler.settings) | {"resources": text}))
    scheduler.start()
    scheduler.wait_ready()
    return scheduler


def holding(pod: Manifest) -> dict[str, list[str]]:
    """Return the devices in a pod's record, by jobid."""
    record = json.loads(pod["metadata"]["annotations"]["fluence.flux-framework.org/held"])
    jobs = record["plugins"]["fluence"]["jobs"]
    return {jobid: part["devices"] for jobid, part in jobs.items() if "devices" in part}


def drift(scheduler: SchedulerProcess) -> list[float]:
    return [value for name, value in scheduler.metrics().items() if name.startswith("fluence_graph_drift_pods")]


def test_who_waits_gets_what_comes_and_what_is_held_stays_held(scenario: Scenario) -> None:
    scenario.add_node(cpu=8, devices=8)
    scheduler = start(scenario, TWO)
    scenario.create_pod("first", device=True)
    scenario.create_pod("second", device=True)
    scenario.wait_bound("first", "second")
    scenario.create_pod("third", device=True)
    scenario.wait_refused("third", "the pod requests 1 qpu, and 0 of 2 are free")
    write(scenario, scheduler, "resources: [{type: qpu, name: b}, {type: qpu, name: a}, {type: qpu, name: c}]\n")
    scenario.wait_bound("third")
    assert list(holding(scenario.pod("third")).values()) == [["/cluster/c"]]
    write(scenario, scheduler, "resources: [{type: qpu, name: c}, {type: qpu, name: d}]\n")
    assert scheduler.metrics()["fluence_missing_parts"] == 2
    scenario.create_pod("fourth", device=True)
    scenario.wait_bound("fourth")
    write(scenario, scheduler, TWO.replace("]\n", ", {type: qpu, name: c}, {type: qpu, name: d}]\n"))
    assert scheduler.metrics()["fluence_missing_parts"] == 0
    assert drift(scheduler) == [0, 0]
    scenario.create_pod("fifth", device=True)
    scenario.wait_refused("fifth", "the pod requests 1 qpu, and 0 of 4 are free")
    scenario.check()


def test_a_file_that_cannot_be_used_changes_nothing_until_it_is_mended(scenario: Scenario) -> None:
    scenario.add_node(cpu=8, devices=8)
    scheduler = start(scenario, TWO)
    write(scenario, scheduler, "resources: [{type: qpu, name: a}, {type: qpu, name: a}]\n")
    assert scheduler.metrics()["fluence_resources_last_load_successful"] == 0
    assert "cannot reload the resources, keeping the old ones" in scheduler.log.read_text()
    scenario.create_pod("first", device=True)
    scenario.wait_bound("first")
    write(scenario, scheduler, TWO)
    assert scheduler.metrics()["fluence_resources_last_load_successful"] == 1
    scenario.check()


def test_what_is_down_is_given_to_nobody_also_by_a_successor(scenario: Scenario) -> None:
    scenario.add_node(cpu=8, devices=8)
    scheduler = start(scenario, TWO)
    scenario.create_pod("first", device=True)
    scenario.wait_bound("first")
    held = holding(scenario.pod("first"))
    down = TWO.replace("name: a", "name: a, status: down").replace("name: b", "name: b, status: down")
    write(scenario, scheduler, down)
    scenario.create_pod("second", device=True)
    scenario.wait_refused("second", "every qpu is down in the resources file: a, b")
    scenario.retire(scheduler)
    successor = start(scenario, down)
    scenario.create_pod("third", device=True)
    scenario.wait_refused("third", "every qpu is down in the resources file: a, b")
    assert scenario.node_of("second") is None
    assert holding(scenario.pod("first")) == held
    assert successor.metrics()["fluence_missing_parts"] == 0
    scenario.delete_pod("third")
    write(scenario, successor, TWO)
    scenario.wait_bound("second")
    scenario.check()


def test_so_many_share_a_device_and_a_successor_knows_also_where_fewer_may_by_then(scenario: Scenario) -> None:
    three = "resources: [{type: qpu, name: a, sharing: 3}]\n"
    scenario.add_node(cpu=8, devices=8)
    scheduler = start(scenario, three)
    for name in ("first", "second", "third"):
        scenario.create_pod(name, device=True)
    scenario.wait_bound("first", "second", "third")
    scenario.create_pod("fourth", device=True)
    scenario.wait_refused("fourth", "the pod requests 1 qpu, and 0 of 3 places are free")
    assert list(holding(scenario.pod("first")).values()) == [["/cluster/a/@"]]
    scenario.retire(scheduler)
    successor = start(scenario, three.replace("3", "1"))
    assert successor.metrics()["fluence_missing_parts"] == 0
    assert drift(successor) == [0, 0]
    scenario.delete_pod("first")
    scenario.delete_pod("second")
    scenario.wait_refused("fourth")
    write(scenario, successor, three)
    scenario.wait_bound("fourth")
    assert successor.metrics()["fluence_missing_parts"] == 0
    scenario.check()


# ------------------------------------------------------------------ fluence backend


def backend(scenario: Scenario, *words: str, user: str = ADMIN) -> tuple[int, str]:
    """Run the command; return exit status and output."""
    kubeconfig = kubeconfig_for(scenario.plane, scenario.folder / scenario.namespace, user=user)
    given = ["--namespace", scenario.namespace, "--configmap", "resources", "--kubeconfig", str(kubeconfig)]
    ended = subprocess.run([sys.executable, "-m", "session_scheduler.cli", "backend", *words, *given],
                           capture_output=True, text=True, timeout=60, check=False)  # fmt: skip
    return ended.returncode, ended.stdout + ended.stderr


def let_nobody_drain(scenario: Scenario) -> None:
    """The user `outsider` has the rights that `fluence backend` needs, and no others."""
    group, metadata = "rbac.authorization.k8s.io", {"name": "drain", "namespace": scenario.namespace}
    rule = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["resources"], "verbs": ["get", "patch"]}
    scenario.plane.create({"apiVersion": f"{group}/v1", "kind": "Role", "metadata": metadata, "rules": [rule]})
    scenario.plane.create({"apiVersion": f"{group}/v1", "kind": "RoleBinding", "metadata": metadata,
                           "roleRef": {"apiGroup": group, "kind": "Role", "name": "drain"},
                           "subjects": [{"apiGroup": group, "kind": "User", "name": "outsider"}]})  # fmt: skip
    path = f"/api/v1/namespaces/{scenario.namespace}/configmaps/resources"
    scenario.until("the right", lambda: scenario.plane.request("GET", path, user="outsider")[0] == HTTPStatus.OK)


def config_map(scenario: Scenario) -> Manifest:
    status, found = scenario.plane.request("GET", f"/api/v1/namespaces/{scenario.namespace}/configmaps/resources")
    assert status == HTTPStatus.OK
    return found


def test_a_backend_is_drained_and_resumed_in_the_config_map(scenario: Scenario) -> None:
    text = "resources:  # ours\n  - name: a  # the first\n    type: qpu\n  - {type: qpu, name: b}\n"
    scenario.add_node(cpu=8, devices=8)
    scheduler = start(scenario, text)
    assert backend(scenario, "drain", "a")[0] == 2  # the ConfigMap does not exist yet
    scenario.plane.create({"apiVersion": "v1", "kind": "ConfigMap", "data": {"resources.yaml": text, "other": "x"},
                           "metadata": {"name": "resources", "namespace": scenario.namespace}})  # fmt: skip

    let_nobody_drain(scenario)

    def set_to(*words: str) -> Manifest:
        status, said = backend(scenario, *words, user="outsider")
        assert status == 0, said
        data: Manifest = config_map(scenario)["data"]
        write(scenario, scheduler, data["resources.yaml"])  # as a kubelet updates it
        return data

    status, said = backend(scenario, "drain", "a", user=SCHEDULER)
    assert (status, "forbidden" in said, said.count("\n")) == (2, True, 1)
    drained = set_to("drain", "a")
    assert drained == {"resources.yaml": text.replace("the first\n", "the first\n    status: down\n"), "other": "x"}
    scenario.create_pod("first", device=True)
    scenario.create_pod("second", device=True)
    refused = "the pod requests 1 qpu, and 0 of 1 is free (1 more is down in the resources file)"
    scenario.until("one of them", lambda: any(scenario.node_of(name) for name in ("first", "second")))
    waiting = next(name for name in ("first", "second") if scenario.node_of(name) is None)
    scenario.wait_refused(waiting, refused)
    version = config_map(scenario)["metadata"]["resourceVersion"]
    assert backend(scenario, "drain", "a") == (0, f"ConfigMap {scenario.namespace}/resources: a is already down\n")
    assert config_map(scenario)["metadata"]["resourceVersion"] == version
    assert set_to("resume", "a")["resources.yaml"] == text
    scenario.wait_bound("first", "second")
    status, said = backend(scenario, "drain", "c")
    assert (status, said.count("\n")) == (2, 1)
    assert "no resource has the name 'c'; the names are a, b" in said
    scenario.check()
