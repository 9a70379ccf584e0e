"""A cluster in memory that elects a leader: with a fence, and with requests that hang or fail on demand."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import replace

from session_scheduler.cluster.errors import Unavailable
from session_scheduler.cluster.kubernetes import KubernetesCluster
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.model.objects import Lease, LeaseSpec, ObjectMeta, Pod


class Cluster(MemoryCluster):
    """With a fence, and with requests that hang or fail on demand."""

    def __init__(self, *objects):
        super().__init__(objects)
        self.check = lambda: None
        self.client = None
        self.silent, self.renewals_fail, self.leases_fail = False, False, False
        self.silent_watches = False
        self.lists = asyncio.Event()
        self.lists.set()
        self.asked_to_list = asyncio.Event()
        self.leases_written = []

    def silence_watches(self):
        """Let no watch report anything from now on."""
        self.silent_watches = True

    async def watch(self, kind, resource_version, **options):
        async for event in super().watch(kind, resource_version, **options):
            if self.silent_watches:
                await asyncio.Event().wait()
            yield event

    def fence_writes(self, check):
        self.check = check

    async def list(self, kind, **options):
        if kind is Lease and self.leases_fail:
            raise Unavailable("no answer")
        if kind is not Lease:
            self.asked_to_list.set()
            await self.lists.wait()
        return await super().list(kind, **options)

    async def get(self, kind, namespace, name, **options):
        if self.silent:
            raise Unavailable("no answer")
        return await super().get(kind, namespace, name, **options)

    async def replace(self, obj):
        self.leases_written.append(obj.spec.holder_identity)
        if self.silent or self.renewals_fail:
            raise Unavailable("no answer")
        return await super().replace(obj)

    async def bind(self, *arguments, **options):
        self.check()
        await super().bind(*arguments, **options)

    # ------------------------------------------------------------------ other replicas

    @property
    def lease(self):
        return self._store(Lease).objects.get(("coordination.k8s.io", "kube-system", "fluence"))

    @property
    def holder(self):
        return self.lease.spec.holder_identity if self.lease is not None else None

    def give_lease_to(self, holder):
        spec = LeaseSpec(holder_identity=holder, lease_duration_seconds=15, lease_transitions=7)
        if self.lease is not None:
            self.put(replace(self.lease, spec=spec))
        else:
            self.put(Lease(metadata=ObjectMeta(name="fluence", namespace="kube-system"), spec=spec))

    def pod(self, name="p"):
        return self._get(Pod, ("", "default", name))


def live(cluster: Cluster) -> KubernetesCluster:
    """The same, for what asks for a cluster with an API server."""
    found: Any = cluster
    kube: KubernetesCluster = found
    return kube
