"""Leader election on a real API server with the shipped rights, and the optional admission policy of deploy/."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import yaml

from session_scheduler.base.clock import SystemClock
from session_scheduler.binding.binder import LEADER_ANNOTATION
from session_scheduler.cluster.errors import Forbidden, NotLeading
from session_scheduler.cluster.kubernetes import KubernetesCluster, connect
from session_scheduler.cluster.leader_election import Elector
from session_scheduler.config.settings import LeaderElection
from session_scheduler.model.objects import ConfigMap, Container, Lease, ObjectMeta, Pod, PodSpec

from .conftest import new_control_plane
from .harness import ADMIN, DEPLOY, SCHEDULER, ControlPlane
from .scheduler_process import SchedulerProcess, Settings

LASTING = LeaderElection(lease_seconds=60, renew_seconds=50.0, retry_seconds=0.2)
"""A lease that does not expire during a test."""
BRIEF = LeaderElection(lease_seconds=5, renew_seconds=4.0, retry_seconds=0.2)
"""A lease whose end tests wait for."""
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/fluence"
PATIENCE = 30.0


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A separate control plane, because a policy applies to all of its objects."""
    with new_control_plane(tmp_path_factory.mktemp("election")) as plane:
        yield plane


@pytest.fixture(autouse=True)
def no_lease(plane: ControlPlane) -> None:
    plane.request("DELETE", LEASE)


@pytest.fixture
async def clusters(plane: ControlPlane) -> AsyncIterator[list[KubernetesCluster]]:
    """Two connections as the scheduler's account."""
    async with contextlib.AsyncExitStack() as stack:
        path = str(plane.kubeconfig(SCHEDULER))
        yield [await stack.enter_async_context(await connect(path)) for _ in range(2)]


@pytest.fixture
async def admin(plane: ControlPlane) -> AsyncIterator[KubernetesCluster]:
    async with await connect(str(plane.kubeconfig(ADMIN))) as cluster:
        yield cluster


def elector(cluster: KubernetesCluster, identity: str, settings: LeaderElection = LASTING) -> Elector:
    made = Elector(cluster, settings, identity=identity, clock=SystemClock())
    cluster.fence_writes(made.fence.check)
    return made


def lease(plane: ControlPlane) -> dict[str, Any]:
    spec: dict[str, Any] = plane.request("GET", LEASE)[1]["spec"]
    return spec


@contextlib.asynccontextmanager
async def running(work: Awaitable[None]) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.ensure_future(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


# ---------------------------------------------------------------------- the election


async def test_one_of_two_leads_and_the_other_takes_over_what_is_given_back(
    plane: ControlPlane, clusters: list[KubernetesCluster]
) -> None:
    first, second = elector(clusters[0], "first", BRIEF), elector(clusters[1], "second", BRIEF)
    await first.acquire()
    async with running(first.keep()), running(second.acquire()) as waiting:
        await asyncio.sleep(BRIEF.lease_seconds + 1)  # longer than the lease
        assert first.fence.leading
        assert not waiting.done()
    assert lease(plane)["holderIdentity"] == "first"
    assert lease(plane)["leaseDurationSeconds"] == BRIEF.lease_seconds
    await first.release()
    assert "holderIdentity" not in lease(plane)
    await asyncio.wait_for(second.acquire(), BRIEF.lease_seconds)
    assert (lease(plane)["holderIdentity"], lease(plane)["leaseTransitions"]) == ("second", 1)


async def test_a_silent_leaders_lease_is_taken_after_it_has_stopped_writing(
    clusters: list[KubernetesCluster],
) -> None:
    first, second = elector(clusters[0], "first", BRIEF), elector(clusters[1], "second", BRIEF)
    await first.acquire()
    await clusters[0].create(config_map("while-leading"))
    began = asyncio.get_running_loop().time()
    await asyncio.wait_for(second.acquire(), PATIENCE)
    assert asyncio.get_running_loop().time() - began >= BRIEF.lease_seconds
    with pytest.raises(NotLeading):
        await clusters[0].create(config_map("afterwards"))
    await clusters[1].create(config_map("successor"))
    with pytest.raises(NotLeading):
        await first.keep()


async def test_the_account_can_write_no_other_lease(
    clusters: list[KubernetesCluster], admin: KubernetesCluster
) -> None:
    metadata = ObjectMeta(namespace="kube-system", name="kube-scheduler")
    other = await admin.create(Lease(metadata=metadata))
    with pytest.raises(Forbidden):
        await clusters[0].get(Lease, "kube-system", "kube-scheduler")
    with pytest.raises(Forbidden):
        await clusters[0].replace(other)


async def test_a_lease_that_was_deleted_is_made_anew_by_its_leader(
    plane: ControlPlane, clusters: list[KubernetesCluster]
) -> None:
    first = elector(clusters[0], "first")
    await first.acquire()
    async with running(first.keep()):
        plane.request("DELETE", LEASE)
        await until(lambda: first.transitions == 1)
    assert lease(plane)["holderIdentity"] == "first"
    assert first.token == "first/1"


def config_map(name: str) -> ConfigMap:
    """One that the scheduler's account may write."""
    labels = {"app.kubernetes.io/managed-by": "fluence"}
    return ConfigMap(metadata=ObjectMeta(namespace="kube-system", name=f"fluence-plan-{name}", labels=labels))


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not true():  # noqa: ASYNC110 (it becomes true in another process)
            await asyncio.sleep(0.02)


# ---------------------------------------------------------------------- the admission policy


class Binder:
    """Binds new pods of a namespace as any user."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self.namespace = plane.new_namespace()
        self._pods = 0

    def bind(self, token: str | None, user: str = SCHEDULER) -> tuple[int, str]:
        """Bind a new pod; return the response's status and message."""
        self._pods += 1
        name = f"pod-{self._pods}"
        container = {"name": "main", "image": "example.com/none"}
        self._plane.create({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [container]},
                            "metadata": {"namespace": self.namespace, "name": name}})  # fmt: skip
        metadata: dict[str, Any] = {"name": name, "namespace": self.namespace}
        if token is not None:
            metadata["annotations"] = {LEADER_ANNOTATION: token}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": {"kind": "Node", "name": "n"}}
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}/binding"
        status, answer = self._plane.request("POST", path, body, user=user)
        return status, answer.get("message", "")

    async def until(self, status: int, token: str | None) -> None:
        """Retry such a binding until its response has this status: the API server knows policies and Leases later."""
        await until(lambda: self.bind(token)[0] == status)


@pytest.fixture(scope="module")
def fenced(plane: ControlPlane) -> None:
    """The policy, applied once. A deleted and recreated policy would use an old Lease (docs/how-to/deploy.md)."""
    for manifest in yaml.safe_load_all((DEPLOY / "options/fencing.yaml").read_text()):
        plane.create(manifest)


@pytest.fixture
async def policy(plane: ControlPlane, fenced: None) -> Binder:
    """Bindings under the policy, in force and without a Lease."""
    plane.create({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": {"holderIdentity": "none"},
                  "metadata": {"name": "fluence", "namespace": "kube-system"}})  # fmt: skip
    binder = Binder(plane)
    await binder.until(HTTPStatus.FORBIDDEN, None)
    plane.request("DELETE", LEASE)
    return binder


async def test_under_the_policy_only_the_leader_of_this_term_binds(
    clusters: list[KubernetesCluster], policy: Binder
) -> None:
    first, second = elector(clusters[0], "first"), elector(clusters[1], "second")
    await first.acquire()
    await policy.until(HTTPStatus.CREATED, first.token)
    for token in (None, "", "first", "first/1", "second/0", "/0", "first/0 "):
        status, message = policy.bind(token)
        assert (status, 'but "first/0" holds the Lease' in message) == (HTTPStatus.FORBIDDEN, True), token
    await first.release()
    await policy.until(HTTPStatus.FORBIDDEN, first.token)
    assert policy.bind("/0")[0] == HTTPStatus.FORBIDDEN
    await second.acquire()
    await policy.until(HTTPStatus.CREATED, second.token)
    assert policy.bind(first.token)[0] == HTTPStatus.FORBIDDEN


async def test_the_policy_refuses_what_an_old_leader_sends_through_the_port(
    admin: KubernetesCluster, clusters: list[KubernetesCluster], policy: Binder
) -> None:
    leader = elector(clusters[0], "first")
    await leader.acquire()
    await policy.until(HTTPStatus.CREATED, leader.token)
    pod = await admin.create(Pod(metadata=ObjectMeta(namespace=policy.namespace, name="mine"), spec=pod_spec()))
    with pytest.raises(Forbidden, match="this Binding is from the leader"):
        await bind(clusters[0], pod, {LEADER_ANNOTATION: "old/7"})
    await bind(clusters[0], pod, {LEADER_ANNOTATION: leader.token})
    bound = await admin.get(Pod, policy.namespace, "mine")
    assert bound.metadata.annotations == {LEADER_ANNOTATION: "first/0"}


async def test_the_policy_is_nothing_to_other_schedulers_whatever_becomes_of_the_lease(
    plane: ControlPlane, policy: Binder
) -> None:
    assert policy.bind(None, user=ADMIN)[0] == HTTPStatus.CREATED
    plane.create({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": {"holderIdentity": "first"},
                  "metadata": {"name": "fluence", "namespace": "kube-system"}})  # fmt: skip
    await policy.until(HTTPStatus.FORBIDDEN, None)
    assert policy.bind(None, user=ADMIN)[0] == HTTPStatus.CREATED
    await policy.until(HTTPStatus.CREATED, "first/0")  # a Lease with a single holder so far has no number


def test_two_schedulers_bind_under_the_policy_one_after_the_other(
    plane: ControlPlane, policy: Binder, tmp_path: Path
) -> None:
    plane.new_node(f"{policy.namespace}-node")
    settings, kubeconfig = Settings(election=True), plane.kubeconfig(SCHEDULER)
    replicas = [SchedulerProcess(tmp_path, kubeconfig, settings, f"replica-{number}") for number in range(2)]
    with contextlib.ExitStack() as stack:
        for replica in replicas:
            stack.enter_context(replica).start()
            replica.wait_ready()  # the second one stands by
        for number, replica in enumerate(replicas):
            assert scheduled(plane, policy.namespace, f"pod-of-term-{number}") == token_of(plane, number)
            replica.kill()


def scheduled(plane: ControlPlane, namespace: str, name: str) -> str:
    """Create a pod, wait until it is bound, and return the binding's token."""
    spec = {"schedulerName": "fluence", "containers": [{"name": "main", "image": "example.com/none"}]}
    plane.create({"apiVersion": "v1", "kind": "Pod", "spec": spec, "metadata": {"name": name, "namespace": namespace}})
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    pod = plane.wait_for(path, lambda found: found["spec"].get("nodeName"), Settings().lease_seconds + PATIENCE)
    leader: str = pod["metadata"]["annotations"][LEADER_ANNOTATION]
    return leader


def token_of(plane: ControlPlane, transitions: int) -> str:
    """Return the Lease's holder and number, which must have these values."""
    spec = lease(plane)
    assert spec["leaseTransitions"] == transitions
    return f"{spec['holderIdentity']}/{transitions}"


def pod_spec() -> PodSpec:
    return PodSpec(scheduler_name="fluence", containers=(Container(name="main", image="example.com/none"),))


async def bind(cluster: KubernetesCluster, pod: Pod, annotations: dict[str, str]) -> None:
    metadata = pod.metadata
    await cluster.bind(metadata.namespace, metadata.name, node="n", uid=metadata.uid,
                       resource_version=metadata.resource_version, annotations=annotations)  # fmt: skip


# ---------------------------------------------------------------------- what is shipped


def test_the_api_server_takes_the_manifest_as_it_is(plane: ControlPlane) -> None:
    for manifest in yaml.safe_load_all((DEPLOY / "fluence.yaml").read_text()):
        if manifest["kind"] in ("ConfigMap", "Deployment"):  # the harness has created the others, also strictly
            assert plane.create(manifest, dry_run=True)["metadata"]["uid"]
