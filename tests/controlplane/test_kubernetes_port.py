"""The port suite with the live cluster on a real API server, as the scheduler's own user.

An administrator creates the objects that a scheduler never creates (pods, groups).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest

from session_scheduler.cluster.errors import NotFound
from session_scheduler.cluster.kube_access import load_access
from session_scheduler.cluster.kube_requests import ApiClient
from session_scheduler.cluster.kubernetes import KubernetesCluster, connect
from session_scheduler.cluster.port import Cluster, Kube
from session_scheduler.model.meta import OwnerReference
from session_scheduler.model.objects import ConfigMap, KubeObject, Lease, Node, Pod, PodGroup, Taint
from session_scheduler.model.related import ReplicaSet, StatefulSet
from session_scheduler.model.workload_objects import WORKLOAD_KINDS, JobSet, LeaderWorkerSet

from ..integration.cluster.port_suite import PortSuite
from .harness import ADMIN, SCHEDULER, ControlPlane


class _WithFixtures(KubernetesCluster):
    """The scheduler's cluster; an administrator creates the tests' initial objects."""

    def __init__(self, client: ApiClient, administrator: KubernetesCluster) -> None:
        super().__init__(client)
        self._administrator = administrator

    async def create(self, obj: Kube) -> Kube:
        if isinstance(obj, ConfigMap):
            return await super().create(obj)
        return await self._administrator.create(obj)

    async def get(self, kind: type[Kube], namespace: str, name: str, *, api_version: str = "") -> Kube:
        # The scheduler may read and write only one Lease: test_election_live.py tests that as its user. It may list
        # nodes and the objects that create pods, but not read them by name.
        if issubclass(kind, (Lease, Node, ReplicaSet, StatefulSet, *WORKLOAD_KINDS)):
            return await self._administrator.get(kind, namespace, name)
        return await super().get(kind, namespace, name, api_version=api_version)

    async def replace(self, obj: Lease) -> Lease:
        return await self._administrator.replace(obj)

    async def open_gate(self, pod: Pod, gate: str, annotations: Mapping[str, str | None]) -> Pod:
        # An option of deploy/ gives this right: test_quantum_live.py tests it as the scheduler's user.
        return await self._administrator.open_gate(pod, gate, annotations)

    async def set_taints(self, node: Node, taints: Sequence[Taint]) -> Node:
        return await self._administrator.set_taints(node, taints)

    # more than five parameters: the fields of the metadata
    async def patch_metadata(
        self,
        obj: Kube,
        *,
        annotations: Mapping[str, str | None] | None = None,
        labels: Mapping[str, str | None] | None = None,
        finalizers: Sequence[str] | None = None,
        owner_references: Sequence[OwnerReference] | None = None,
        resource_version: str | None = None,
    ) -> Kube:
        # A policy of deploy/ restricts the labels and finalizers of pods: test_gates_policy_live.py tests it.
        restricted = isinstance(obj, Pod) and (labels is not None or finalizers is not None)
        patch = self._administrator.patch_metadata if restricted else super().patch_metadata
        return await patch(
            obj,
            annotations=annotations,
            labels=labels,
            finalizers=finalizers,
            owner_references=owner_references,
            resource_version=resource_version,
        )

    async def delete(self, obj: Kube, *, grace_seconds: int | None = None, resource_version: str | None = None) -> None:
        delete = self._administrator.delete if isinstance(obj, Node | PodGroup) else super().delete
        await delete(obj, grace_seconds=grace_seconds, resource_version=resource_version)


class LiveHarness:
    """The real API server, with a namespace for each test."""

    def __init__(self, cluster: Cluster, control_plane: ControlPlane) -> None:
        self.cluster = cluster
        self.namespace = control_plane.new_namespace()
        self._control_plane = control_plane

    async def too_old(self, kind: type[KubeObject]) -> str:
        return "1"  # older than the API server's start

    async def make(self, manifest: dict[str, Any]) -> None:
        self._control_plane.create(manifest)


class TestKubernetesPort(PortSuite):
    """Every test of the suite, live."""

    @pytest.mark.parametrize("kind", [JobSet, LeaderWorkerSet])
    async def test_a_kind_that_the_cluster_does_not_have_is_not_found_and_said_to_be_missing(
        self, harness: LiveHarness, kind: type[JobSet | LeaderWorkerSet]
    ) -> None:
        with pytest.raises(NotFound, match="is its CustomResourceDefinition installed"):
            await harness.cluster.get(kind, harness.namespace, "maker")

    @pytest.fixture
    async def harness(self, control_plane: ControlPlane) -> AsyncIterator[LiveHarness]:
        access = await load_access(str(control_plane.kubeconfig(SCHEDULER)), None)
        async with (
            await connect(str(control_plane.kubeconfig(ADMIN))) as administrator,
            _WithFixtures(ApiClient(access), administrator) as cluster,
        ):
            yield LiveHarness(cluster, control_plane)
