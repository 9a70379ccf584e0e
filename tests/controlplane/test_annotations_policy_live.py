"""The admission policies of deploy/options/annotations.yaml, on a real API server with controllers and `fluence run`.

The user has every right in a namespace, so only the policies can reject a request here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import new_control_plane
from .harness import ADMIN, DEPLOY, OWN_PLANS, POD_STATUS, SCHEDULER, ControlPlane
from .invariants import ATTEMPT, HELD, PLAN, PREFIX, Manifest, annotation, plan_of
from .scenarios_world import Scenario

USER = "outsider"
MANIFESTS = list(yaml.safe_load_all((DEPLOY / "options/annotations.yaml").read_text()))
NATIVE, COSCHEDULING = "scheduling.k8s.io/v1alpha2", "scheduling.x-k8s.io/v1alpha1"
REGION = PREFIX + "attr-region"
RECORDS = {HELD: "{}", ATTEMPT: "one", PLAN: "{}", PREFIX + "backend": "qpu", PREFIX + "jobid": "7", REGION: "here",
           PREFIX + "gpu": "0", PREFIX + "gpu-device": "GPU-0",
           PREFIX + "attr-held": ""}  # fmt: skip
"""Annotations that only fluence writes on pods."""
REQUESTS = {PREFIX + "require-region": "here", PREFIX + "require-backend": "qpu", PREFIX + "require-attr-x": "1"}
ORDINARY = {
    PREFIX + "attribute": "1",
    PREFIX + "held.too": "1",
    "example.com/held": "1",
    "held": "1",
    "example.com/p": "",
}
MOST = 4096
"""Maximum number of annotations that the policies check."""
PATIENCE = 30.0


@dataclass
class Space:
    """A namespace in which the user has every right, and requests in it."""

    plane: ControlPlane
    name: str

    def path(self, end: str, group: str = "v1") -> str:
        root = "/apis/" if "/" in group else "/api/"
        return f"{root}{group}/namespaces/{self.name}/{end}"

    def ask(
        self, method: str, end: str, body: object = None, *, group: str = "v1", user: str = USER
    ) -> tuple[int, Any]:
        return self.plane.request(method, self.path(end, group), body, user=user)

    def annotate(self, end: str, annotations: Mapping[str, str | None], *, group: str = "v1", user: str = USER) -> int:
        return self.ask("PATCH", end, {"metadata": {"annotations": annotations}}, group=group, user=user)[0]

    def annotations(self, end: str, group: str = "v1") -> dict[str, str]:
        status, found = self.ask("GET", end, group=group)
        assert status == HTTPStatus.OK, found
        return dict(found["metadata"].get("annotations") or {})

    def create_pod(self, name: str, annotations: dict[str, str] | None = None, user: str = USER) -> tuple[int, Any]:
        return self.ask("POST", "pods", pod(name, annotations), user=user)

    def new_pod(self, name: str, annotations: dict[str, str] | None = None) -> None:
        status, answer = self.create_pod(name, annotations)
        assert status == HTTPStatus.CREATED, answer

    def record(self, name: str, annotations: Mapping[str, str | None]) -> None:
        """Write an annotation on a pod as fluence."""
        assert self.annotate(f"pods/{name}/status", annotations, user=SCHEDULER) == HTTPStatus.OK


def pod(name: str, annotations: dict[str, str] | None = None) -> Manifest:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": annotations or {}},
            "spec": {"terminationGracePeriodSeconds": 0, "schedulerName": "none",
                     "containers": [{"name": "main", "image": "example.com/none"}]}}  # fmt: skip


def pod_group(name: str, api: str, annotations: dict[str, str] | None = None) -> Manifest:
    spec = {"schedulingPolicy": {"gang": {"minCount": 2}}} if api == NATIVE else {"minMember": 2}
    metadata = {"name": name, "annotations": annotations or {}}
    return {"apiVersion": api, "kind": "PodGroup", "metadata": metadata, "spec": spec}


def binding(name: str, annotations: dict[str, str]) -> Manifest:
    metadata = {"name": name, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": {"kind": "Node", "name": "n"}}


def config_map(name: str, text: str) -> Manifest:
    metadata = {"name": name, "labels": {"app.kubernetes.io/managed-by": "fluence"}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"pods": text}}


def install_coscheduling(plane: ControlPlane) -> None:
    """Install the coscheduling plugin's PodGroup API, as its administrator would."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1alpha1", "served": True, "storage": True, "subresources": {"status": {}},
               "schema": {"openAPIV3Schema": schema}}  # fmt: skip
    names = {"kind": "PodGroup", "plural": "podgroups", "singular": "podgroup", "listKind": "PodGroupList"}
    spec = {"group": "scheduling.x-k8s.io", "scope": "Namespaced", "names": names, "versions": [version]}
    plane.create({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                  "metadata": {"name": "podgroups.scheduling.x-k8s.io"}, "spec": spec})  # fmt: skip
    plane.wait_for(f"/apis/{COSCHEDULING}/podgroups", lambda answer: "items" in answer)


def new_space(plane: ControlPlane) -> Space:
    space = Space(plane, plane.new_namespace())
    rbac = "rbac.authorization.k8s.io"
    plane.create({"apiVersion": f"{rbac}/v1", "kind": "RoleBinding",
                  "metadata": {"name": "everything", "namespace": space.name},
                  "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "cluster-admin"},
                  "subjects": [{"apiGroup": rbac, "kind": "User", "name": USER}]})  # fmt: skip
    plane.wait_for(space.path("serviceaccounts/default"), lambda answer: answer.get("kind") == "ServiceAccount")
    until(lambda: space.ask("GET", "pods")[0] == HTTPStatus.OK)  # the API server knows new rights a moment later
    return space


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)


def put_in_force(plane: ControlPlane) -> None:
    """Apply the policies, and wait until the API server enforces each of them."""
    for manifest in MANIFESTS:
        plane.create(manifest)
    space = new_space(plane)
    probes = [("pods", "v1", pod("probe", {HELD: "{}"})), ("configmaps", "v1", config_map("fluence-plan-probe", ""))]
    probes += [("podgroups", api, pod_group("probe", api, {PLAN: "{}"})) for api in (NATIVE, COSCHEDULING)]
    for plural, group, body in probes:

        def refused(end: str = f"{plural}?dryRun=All", group: str = group, body: Manifest = body) -> bool:
            return space.ask("POST", end, body, group=group)[0] == HTTPStatus.FORBIDDEN

        until(refused)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A separate control plane, because policies apply to all of its objects."""
    with new_control_plane(tmp_path_factory.mktemp("annotations"), controllers=True) as plane:
        install_coscheduling(plane)
        put_in_force(plane)
        yield plane


@pytest.fixture(scope="module")
def namespace(plane: ControlPlane) -> Space:
    return new_space(plane)


@pytest.fixture
def space(namespace: Space) -> Iterator[Space]:
    """The user's namespace. Its pods are deleted after each test, because the scheduler counts them."""
    yield namespace
    assert namespace.ask("DELETE", "pods")[0] == HTTPStatus.OK
    until(lambda: not namespace.ask("GET", "pods")[1]["items"])


# ---------------------------------------------------------------------- pods


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_nobody_else_makes_a_pod_with_a_record(space: Space, name: str) -> None:
    for user in (USER, ADMIN):
        status, answer = space.create_pod("forged", REQUESTS | {name: RECORDS[name]}, user)
        assert (status, f"only fluence writes these annotations: {name}" in answer["message"]) == (403, True), answer


def test_users_write_what_they_require_and_whatever_else_is_theirs(space: Space) -> None:
    space.new_pod("requiring", REQUESTS | ORDINARY)
    assert space.annotations("pods/requiring") == REQUESTS | ORDINARY
    assert space.annotate("pods/requiring", dict.fromkeys(REQUESTS, "other")) == HTTPStatus.OK
    assert space.annotate("pods/requiring", dict.fromkeys(REQUESTS | ORDINARY)) == HTTPStatus.OK
    assert space.annotations("pods/requiring") == {}


@pytest.mark.parametrize("part", ["", "/status"])
def test_nobody_else_makes_changes_or_removes_what_fluence_recorded_on_a_pod(space: Space, part: str) -> None:
    name = f"recorded{part.replace('/', '-')}"
    space.new_pod(name, REQUESTS)
    for record, value in RECORDS.items():
        assert space.annotate(f"pods/{name}{part}", {record: value}) == HTTPStatus.FORBIDDEN, record
        space.record(name, {record: value})
        for other in ("forged", None):
            assert space.annotate(f"pods/{name}{part}", {record: other}) == HTTPStatus.FORBIDDEN, record
    assert space.annotations(f"pods/{name}") == REQUESTS | RECORDS


@pytest.mark.parametrize("name", ["gpu-fraction", "gpu-memory", "gpu-count"])
def test_the_gpu_request_is_immutable_once_the_pod_is_bound(space: Space, name: str) -> None:
    asked = PREFIX + name
    space.new_pod(name, {asked: "1"})
    assert space.annotate(f"pods/{name}", {asked: "2"}) == HTTPStatus.OK
    status, answer = space.ask("POST", f"pods/{name}/binding", binding(name, {}))
    assert status == HTTPStatus.CREATED, answer
    for end in (f"pods/{name}", f"pods/{name}/status"):
        for other in ("3", None):
            assert space.annotate(end, {asked: other}) == HTTPStatus.FORBIDDEN
    assert space.annotate(f"pods/{name}", {"example.com/other": "1"}) == HTTPStatus.OK


def test_a_pod_that_is_replaced_keeps_its_records_or_is_refused(space: Space) -> None:
    space.new_pod("replaced")
    space.record("replaced", {HELD: "{}", REGION: "here"})
    found = space.ask("GET", "pods/replaced")[1]
    for left in ({HELD: "{}"}, {}, {HELD: "{ }", REGION: "here"}):
        found["metadata"]["annotations"] = left
        assert space.ask("PUT", "pods/replaced", found)[0] == HTTPStatus.FORBIDDEN, left
    del found["metadata"]["annotations"]
    assert space.ask("PUT", "pods/replaced", found)[0] == HTTPStatus.FORBIDDEN
    found["metadata"]["annotations"] = {HELD: "{}", REGION: "here", "example.com/new": "1"}
    assert space.ask("PUT", "pods/replaced", found)[0] == HTTPStatus.OK


def test_a_recorded_pod_lives_and_ends_as_any_other(space: Space) -> None:
    space.new_pod("living")
    space.record("living", RECORDS)
    changes: list[tuple[str, Manifest]] = [
        ("pods/living", {"metadata": {"labels": {"a": "b"}, "annotations": ORDINARY, "finalizers": ["example.com/f"]}}),
        ("pods/living", {"metadata": {"annotations": dict.fromkeys(ORDINARY), "finalizers": None}}),
        ("pods/living/status", {"status": {"phase": "Running"}}),
    ]
    for end, change in changes:
        status, answer = space.ask("PATCH", end, change)
        assert status == HTTPStatus.OK, answer
    assert space.annotations("pods/living") == RECORDS
    assert space.ask("DELETE", "pods/living")[0] == HTTPStatus.OK


def test_fluence_changes_and_removes_what_it_recorded(space: Space) -> None:
    space.new_pod("of-fluence")
    space.record("of-fluence", RECORDS)
    space.record("of-fluence", dict.fromkeys(RECORDS, "changed"))
    space.record("of-fluence", dict.fromkeys(RECORDS))
    assert space.annotations("pods/of-fluence") == {}


def test_the_subresources_that_are_not_looked_at_cannot_change_a_record(space: Space) -> None:
    space.new_pod("subresources")
    space.record("subresources", {HELD: "{}"})
    forged = {"annotations": {HELD: "forged", REGION: "there"}}
    debugger = {"name": "debugger", "image": "example.com/none", "terminationMessagePolicy": "File",
                "imagePullPolicy": "Always"}  # fmt: skip
    for part, spec in (("resize", {}), ("ephemeralcontainers", {"ephemeralContainers": [debugger]})):
        status, answer = space.ask("PATCH", f"pods/subresources/{part}", {"metadata": forged, "spec": spec})
        assert status == HTTPStatus.OK, answer
    assert space.annotations("pods/subresources") == {HELD: "{}"}


def test_annotations_may_be_many_but_not_so_many_that_a_look_takes_seconds(space: Space) -> None:
    many = {f"a{number}": "" for number in range(MOST)}
    space.new_pod("many", many)
    assert space.annotate("pods/many", {HELD: "{}", "a0": None}) == HTTPStatus.FORBIDDEN
    assert space.annotate("pods/many", {"a": "1", "a0": None}) == HTTPStatus.OK
    assert space.annotate("pods/many", {"too": "many"}) == HTTPStatus.FORBIDDEN
    status, answer = space.create_pod("forged", {f"{REGION}-{number}": "" for number in range(MOST)})
    assert (status, "only fluence writes these annotations" in answer["message"]) == (HTTPStatus.FORBIDDEN, True)
    status, answer = space.create_pod("too-many", many | {"too": "many"})
    assert (status, "expected at most 4096 annotations" in answer["message"]) == (HTTPStatus.FORBIDDEN, True), answer


def test_a_pod_of_too_many_annotations_lives_and_ends_as_it_is(space: Space) -> None:
    """Such a pod may be older than the policies: here fluence's account creates it."""
    space.new_pod("of-old", {f"a{number}": "" for number in range(MOST)})
    space.record("of-old", {HELD: "{}"})
    assert space.ask("PATCH", "pods/of-old", {"metadata": {"labels": {"a": "b"}}})[0] == HTTPStatus.OK
    assert space.ask("PATCH", "pods/of-old/status", {"status": {"phase": "Running"}})[0] == HTTPStatus.OK
    for change in ({HELD: None}, {"a0": None}):
        assert space.annotate("pods/of-old", change) == HTTPStatus.FORBIDDEN, change
    assert space.ask("DELETE", "pods/of-old")[0] == HTTPStatus.OK


# ---------------------------------------------------------------------- Bindings


def test_other_schedulers_bindings_carry_no_records(space: Space) -> None:
    space.new_pod("bound")
    for end in ("pods/bound/binding", "bindings"):
        for name, value in RECORDS.items():
            status, answer = space.ask("POST", end, binding("bound", ORDINARY | {name: value}))
            assert (status, name in answer["message"]) == (HTTPStatus.FORBIDDEN, True), (end, answer)
    assert space.annotations("pods/bound") == {}
    status, answer = space.ask("POST", "pods/bound/binding", binding("bound", ORDINARY))
    assert status == HTTPStatus.CREATED, answer
    assert space.annotations("pods/bound") == ORDINARY


def test_fluences_bindings_carry_its_records(space: Space) -> None:
    space.new_pod("bound-by-fluence", REQUESTS)
    body = binding("bound-by-fluence", RECORDS)
    status, answer = space.ask("POST", "pods/bound-by-fluence/binding", body, user=SCHEDULER)
    assert status == HTTPStatus.CREATED, answer
    assert space.annotations("pods/bound-by-fluence") == REQUESTS | RECORDS


# ---------------------------------------------------------------------- plans


@pytest.mark.parametrize("api", [NATIVE, COSCHEDULING])
def test_nobody_else_makes_changes_or_removes_a_podgroups_plan(space: Space, api: str) -> None:
    status, answer = space.ask("POST", "podgroups", pod_group("forged", api, {PLAN: "{}"}), group=api)
    assert (status, f"only fluence writes this annotation: {PLAN}" in answer["message"]) == (403, True), answer
    status, answer = space.ask("POST", "podgroups", pod_group("group", api, REQUESTS), group=api)
    assert status == HTTPStatus.CREATED, answer
    assert space.annotate("podgroups/group", {PLAN: ""}, group=api) == HTTPStatus.FORBIDDEN
    assert space.annotate("podgroups/group", {PLAN: "{}"}, group=api, user=SCHEDULER) == HTTPStatus.OK
    for other in ("forged", None):
        assert space.annotate("podgroups/group", {PLAN: other}, group=api) == HTTPStatus.FORBIDDEN
    assert space.annotate("podgroups/group", {"example.com/a": "1"} | dict.fromkeys(REQUESTS), group=api) == 200
    space.annotate("podgroups/group/status", {PLAN: "forged"}, group=api)  # rejected, or only the status changes
    assert space.annotations("podgroups/group", api) == {PLAN: "{}", "example.com/a": "1"}
    assert space.annotate("podgroups/group", {PLAN: None}, group=api, user=SCHEDULER) == HTTPStatus.OK


def test_no_other_account_makes_or_changes_the_config_map_of_a_large_plan(plane: ControlPlane) -> None:
    space = Space(plane, "kube-system")
    plan, end = config_map("fluence-plan-one", "packed"), "configmaps/fluence-plan-one"
    assert space.ask("POST", "configmaps", plan, user=ADMIN)[0] == HTTPStatus.FORBIDDEN
    assert space.ask("POST", "configmaps", plan, user=SCHEDULER)[0] == HTTPStatus.CREATED
    for data in ({"pods": "forged"}, {"pods": None}, {"more": "1"}):
        assert space.ask("PATCH", end, {"data": data}, user=ADMIN)[0] == HTTPStatus.FORBIDDEN, data
    assert space.annotate(end, {"example.com/a": "1"}, user=ADMIN) == HTTPStatus.OK
    assert space.ask("DELETE", end, user=ADMIN)[0] == HTTPStatus.OK
    other = config_map("fluence-planned", "mine")
    assert space.ask("POST", "configmaps", other, user=ADMIN)[0] == HTTPStatus.CREATED


# ---------------------------------------------------------------------- the policies themselves, and the scheduler


def test_the_api_server_finds_no_fault_in_the_expressions(plane: ControlPlane) -> None:
    gates = next(each for each in yaml.safe_load_all((DEPLOY / "options/coordination.yaml").read_text())
                 if each["kind"] == "ValidatingAdmissionPolicy")  # fmt: skip
    plane.create(gates)  # without a binding it rejects nothing
    policies = [each for each in [*MANIFESTS, gates] if each["kind"] == "ValidatingAdmissionPolicy"]
    for name in (OWN_PLANS, POD_STATUS, *(each["metadata"]["name"] for each in policies)):
        path = f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/{name}"
        checked = plane.wait_for(path, lambda found: "observedGeneration" in found.get("status", {}))
        assert checked["status"].get("typeChecking", {}).get("expressionWarnings", []) == []


@pytest.fixture
def scenario(plane: ControlPlane, tmp_path: Path) -> Iterator[Scenario]:
    with Scenario(plane, tmp_path) as world:
        yield world


def test_a_gang_with_a_device_is_bound_and_its_plan_taken_away_under_the_policies(scenario: Scenario) -> None:
    scenario.add_node()
    scenario.run()
    scenario.create_gang("gang", 2, device=True, annotations={PREFIX + "require-region": "here"})
    scenario.wait_whole("gang", 2)
    space = Space(scenario.plane, scenario.namespace)
    assert plan_of(scenario.group("gang")) is not None
    for each in scenario.members("gang"):
        assert [annotation(each, name) is None for name in (HELD, ATTEMPT, REGION)] == [False] * 3
        end = f"pods/{each['metadata']['name']}"
        assert space.annotate(end, {HELD: None}, user=ADMIN) == HTTPStatus.FORBIDDEN
    assert space.annotate("podgroups/gang", {PLAN: None}, group=NATIVE, user=ADMIN) == HTTPStatus.FORBIDDEN
    scenario.check("gang")
    scenario.finish(scenario.members("gang"))
    scenario.wait_without_plan("gang")


def test_controllers_make_replace_and_collect_pods_and_their_gang_under_the_policies(scenario: Scenario) -> None:
    scenario.add_node(devices=0)
    scenario.run()
    scenario.create_group("gang", 2)
    scenario.deploy("gang", 2)
    scenario.wait_whole("gang", 2)
    gone = min(scenario.places("gang"))
    scenario.delete_pod(gone)
    scenario.until("another pod", lambda: gone not in scenario.places("gang") and len(scenario.places("gang")) == 2)
    space = Space(scenario.plane, scenario.namespace)
    assert space.ask("DELETE", "deployments/gang", group="apps/v1", user=ADMIN)[0] == HTTPStatus.OK
    scenario.until("the end of all pods", lambda: not scenario.members("gang"))
    assert space.ask("DELETE", "podgroups/gang", group=NATIVE, user=ADMIN)[0] == HTTPStatus.OK
    scenario.until("the end of the group", lambda: scenario.group("gang").get("code") == HTTPStatus.NOT_FOUND)
