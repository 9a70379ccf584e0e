"""The node controller: synchronises nodes between Kubernetes and Slurm.

It drains cordoned nodes in Slurm. It creates, changes and deletes external nodes there. It taints the nodes that Slurm
allocates, so that only Slurm's pods fit. `external_nodes` computes the steps for each node. All state is in Slurm and
in the API server, so that another replica can continue after a crash.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, assert_never

from fluence_plugins.slurm_bridge import names
from fluence_plugins.slurm_bridge.batches import in_batches
from fluence_plugins.slurm_bridge.nodes import external_nodes
from fluence_plugins.slurm_bridge.slurm.client import SlurmClient
from fluence_plugins.slurm_bridge.slurm.errors import (
    NodeBusyError,
    NodeExistsError,
    TokenError,
    UnavailableError,
    UnknownNodeError,
)
from fluence_plugins.slurm_bridge.slurm.model import SlurmNode
from session_scheduler.errors import ChangedMeanwhileError, FluenceError
from session_scheduler.model.objects import Node, Taint
from session_scheduler.model.related import Namespace
from session_scheduler.sdk.bindings import Runtime
from session_scheduler.sdk.tasks import alongside, follow

if TYPE_CHECKING:
    from session_scheduler.sdk.cluster import Cluster

log = logging.getLogger("fluence")

_MOST_DOUBLINGS: Final = 6
_NOT_ELECTED_SECONDS: Final = 1.0
"""Seconds between two checks whether this replica leads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """How nodes are synchronised. Times in seconds.

    `cluster` identifies this cluster's nodes in Slurm; empty for the uid of the namespace kube-system. A pass starts
    when a node has changed, but at most once in `rest`, and every `period`. A failure is retried after `again`; the
    interval doubles each time.
    """

    rules: external_nodes.NodeRules = field(default_factory=external_nodes.NodeRules)
    cluster: str = ""
    scheduler_name: str = names.SCHEDULER_NAME
    period: float = 30.0
    again: float = 5.0
    rest: float = 0.5


@dataclass(frozen=True, slots=True)
class _Problem:
    """A failure with a node: when it is retried, how often it has failed, and the node's state at that time."""

    text: str
    due: float
    times: int
    like: object


@dataclass(eq=False)
class NodeController:
    """See the module. `passes` counts the passes over all nodes that succeeded."""

    cluster: Cluster
    client: SlurmClient
    runtime: Runtime
    settings: NodeSettings
    now: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._changed = asyncio.Event()
        self._nodes: dict[str, Node] | None = None
        """By name; None before the first list."""
        self._identity = self.settings.cluster
        self._problems: dict[str, _Problem] = {}
        """By name in Kubernetes, or in Slurm if Kubernetes has no such node."""
        self._reported: dict[str, str] = {}
        """By uid: the node's last event, while its cause persists."""
        self._refused: dict[str, str] = {}
        """By uid: why a taint could not be added or removed."""
        self._down = ""
        """Why the last pass failed; empty if it succeeded."""
        self._failures = 0
        self._next = 0.0
        """When the next pass starts if nothing changes; after a failure, no pass starts earlier."""
        self.passes = 0

    async def run(self) -> None:
        """Run passes forever."""
        async with alongside(self._follow()):
            while True:
                await self._pass()

    # ------------------------------------------------------------------ Kubernetes nodes

    async def _follow(self) -> None:
        failed = partial(log.warning, "[slurm-bridge] cannot watch nodes: %s")
        await follow(
            self.cluster, Node, self._replace, failed=failed, pause=min(_NOT_ELECTED_SECONDS, self.settings.again)
        )

    def _replace(self, there: tuple[Node, ...]) -> Callable[[Node, bool], None]:
        nodes = self._nodes = {node.metadata.name: node for node in there}
        self._changed.set()
        return partial(self._observe, nodes)

    def _observe(self, nodes: dict[str, Node], node: Node, gone: bool) -> None:
        before = nodes.pop(node.metadata.name, None)
        if not gone:
            nodes[node.metadata.name] = node
        if gone or before is None or self._like(before) != self._like(node):
            self._changed.set()

    def _like(self, node: Node) -> object:
        """The fields of a node that a pass reads: kubelets write the others all the time."""
        metadata, allocatable = node.metadata, node.status.allocatable
        resources = ("cpu", "memory", *(name for name, _ in self.settings.rules.resources))
        return (
            metadata.uid,
            metadata.labels,
            [metadata.annotations.get(name) for name in (names.PARTITIONS_ANNOTATION, names.TOPOLOGY_ANNOTATION)],
            node.spec,
            [allocatable.get(name) for name in resources],
            node.status.addresses,
            node.unreadable,
        )

    # ------------------------------------------------------------------ when a pass starts

    async def _pass(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._wait()):
                if self._down or not self.runtime.elected:
                    await asyncio.Event().wait()  # a change does not start the pass earlier
                await self._changed.wait()
        if self._nodes is None or not self.runtime.elected or (self._down and self.now() < self._next):
            return
        self._changed.clear()
        try:
            await self._reconcile(dict(self._nodes))
        except FluenceError as error:
            self._failed(str(error))
            return
        if self._down:
            log.info("[slurm-bridge] nodes are synchronised with Slurm again")
        self._down, self._failures = "", 0
        self.passes += 1
        now = self.now()
        due = min((problem.due for problem in self._problems.values()), default=math.inf)
        self._next = min(now + self.settings.period, max(due, now + self.settings.again))
        await asyncio.sleep(self.settings.rest)

    def _wait(self) -> float:
        if self._nodes is None or not self.runtime.elected:
            return min(_NOT_ELECTED_SECONDS, self.settings.again)
        return max(0.0, self._next - self.now())

    def _failed(self, text: str) -> None:
        if text != self._down:
            log.warning("[slurm-bridge] cannot synchronise nodes with Slurm: %s", text)
        self._down = text
        self._next = self.now() + self._backoff(self._failures)
        self._failures += 1
        self._changed.set()

    def _backoff(self, times: int) -> float:
        return self.settings.again * (1 << min(times, _MOST_DOUBLINGS))

    # ------------------------------------------------------------------ a pass

    async def _reconcile(self, nodes: Mapping[str, Node]) -> None:
        """Synchronise all nodes. Raises FluenceError if Slurm does not respond.

        The caller reads `nodes` before Slurm's nodes: if an administrator drains a node in Slurm and then cordons it,
        the drain stays the administrator's.
        """
        if not self._identity:
            self._identity = (await self.cluster.get(Namespace, "", "kube-system")).metadata.uid
        found = {node.name: node for node in await self.client.nodes()}
        partitions = await self.client.partitions()
        named = self._named(nodes)
        self._problems = {name: one for name, one in self._problems.items() if name in nodes or name in found}
        uids = {node.metadata.uid for node in nodes.values()}
        for texts in (self._reported, self._refused):
            for uid in texts.keys() - uids:
                del texts[uid]
        # The unreadable part of a node may be its labels: then it is unknown which of Slurm's nodes have no Kubernetes
        # node.
        unknown = any(node.unreadable for node in nodes.values())
        known = named if unknown else dict.fromkeys((*named, *found))
        there = set(found)
        await in_batches(known, lambda name: self._sync(name, named.get(name), found.get(name), partitions, there))
        mark = external_nodes.mark_of(self._identity)
        managed = {name for name in there if name not in found or not external_nodes.is_foreign(found[name], mark)}
        by_node = {node.metadata.name: name for name, node in named.items()}
        await in_batches(
            [node for node in nodes.values() if not node.unreadable],
            lambda node: self._taint(node, by_node.get(node.metadata.name, ""), managed),
        )

    def _named(self, nodes: Mapping[str, Node]) -> dict[str, Node]:
        """The nodes by their names in Slurm, without unreadable ones. If several have one name, the oldest node gets
        it.
        """
        named: dict[str, Node] = {}
        readable = [node for node in nodes.values() if not node.unreadable]
        for node in sorted(readable, key=lambda one: (one.metadata.creation_timestamp or "", one.metadata.name)):
            try:
                name = external_nodes.slurm_name(node)
            except ValueError as error:
                self._report(node, str(error))
                continue
            other = named.setdefault(name, node)
            if other is not node:
                self._report(node, f"its name in Slurm, {name}, already belongs to node {other.metadata.name}; "
                                 f"choose another name (label {names.NODE_NAME_LABEL})")  # fmt: skip
        return named

    async def _sync(
        self, name: str, node: Node | None, found: SlurmNode | None, partitions: Collection[str], there: set[str]
    ) -> None:
        """Execute the steps for one name in Slurm. `there`: the names that Slurm has; updated here."""
        key = node.metadata.name if node is not None else name
        spec, wrong = None, ""
        mark = external_nodes.mark_of(self._identity)
        try:
            if node is not None and external_nodes.is_external(node):
                spec = external_nodes.external(node, self.settings.rules, partitions)
            todo = external_nodes.steps(node, found, spec, mark=mark, partitions=partitions)
        except ValueError as error:
            wrong = str(error)
            todo = external_nodes.steps(node, found, None, mark=mark, partitions=partitions)
        if spec is not None and found is not None and not wrong and not todo:
            wrong = external_nodes.missing_partitions(spec, found)
        like = (self._like(node) if node is not None else None, found, tuple(partitions))
        known = self._problems.get(key)
        if known is not None and known.like == like and self.now() < known.due:
            return
        try:
            for step in todo:
                if not self.runtime.elected:
                    return
                await self._do(name, step, there)
        except (UnavailableError, TokenError):
            raise
        except NodeBusyError:
            log.debug("[slurm-bridge] node %s still has jobs", name)
        except (NodeExistsError, UnknownNodeError) as error:
            log.info("[slurm-bridge] node %s changed in Slurm concurrently: %s", name, error)
            self._retry_later(key, str(error), like)
            return
        except (FluenceError, ValueError) as error:
            wrong = str(error)
            self._retry_later(key, wrong, like)
            self._report_for(node, name, wrong)
            return
        self._problems.pop(key, None)
        self._report_for(node, name, wrong)

    async def _do(self, name: str, step: external_nodes.Step, there: set[str]) -> None:
        match step:
            case external_nodes.Create(spec):
                await self._create(spec)
                there.add(name)
            case external_nodes.Delete():
                await self.client.delete_node(name)
                there.discard(name)
                log.info("[slurm-bridge] deleted node %s from Slurm", name)
            case external_nodes.Drain(reason):
                await self.client.update_node(name, state="DRAIN", reason=reason)
                log.info("[slurm-bridge] drained node %s in Slurm: %s", name, reason)
            case external_nodes.Undrain():
                await self.client.update_node(name, state="UNDRAIN")
                log.info("[slurm-bridge] undrained node %s in Slurm", name)
            case external_nodes.Change(topology, comment):
                await self.client.update_node(name, topology=topology, comment=comment)
            case _:
                assert_never(step)

    async def _create(self, spec: external_nodes.External) -> None:
        await self.client.create_node(spec.conf)
        log.info("[slurm-bridge] created node %s in Slurm, with %d CPUs, %d MiB and %s, in %s", spec.name, spec.cpus,
                 spec.memory_mib, spec.gres or "no GRES", ", ".join(spec.partitions))  # fmt: skip

    def _retry_later(self, key: str, text: str, like: object) -> None:
        known = self._problems.get(key)
        times = known.times + 1 if known is not None and known.text == text and known.like == like else 0
        self._problems[key] = _Problem(text, self.now() + self._backoff(times), times, like)

    # ------------------------------------------------------------------ taints

    async def _taint(self, node: Node, name: str, managed: Collection[str]) -> None:
        """Taint a node that Slurm allocates, so that other pods do not fit; remove the taint if Slurm no longer has the
        node.
        """
        own = Taint(key=names.MANAGED_TAINT, value=self.settings.scheduler_name, effect="NoExecute")
        taints = node.spec.taints
        if name in managed:
            wanted = (*(one for one in taints if (one.key, one.effect) != (own.key, own.effect)), own)
        elif external_nodes.is_external(node) and name:
            return  # Slurm does not have it yet, or is getting a new one
        else:
            wanted = tuple(one for one in taints if one != own)
        if set(wanted) == set(taints) or not self.runtime.elected:
            return
        key = node.metadata.uid
        try:
            await self.cluster.set_taints(node, wanted)
        except ChangedMeanwhileError:
            self._changed.set()  # run again: the watch delivers the other change
        except FluenceError as error:
            if self._refused.get(key) != str(error):
                log.warning("[slurm-bridge] cannot set the taint of node %s: %s", node.metadata.name, error)
            self._refused[key] = str(error)
        else:
            self._refused.pop(key, None)

    # ------------------------------------------------------------------ events

    def _report_for(self, node: Node | None, name: str, text: str) -> None:
        if node is not None:
            self._report(node, text)
        elif text:
            log.warning("[slurm-bridge] node %s of Slurm: %s", name, text)

    def _report(self, node: Node, text: str) -> None:
        """Record an event for the node, once for as long as the text stays the same. Empty text clears it."""
        uid = node.metadata.uid
        if not text:
            self._reported.pop(uid, None)
        elif self._reported.get(uid) != text:
            self._reported[uid] = text
            log.warning("[slurm-bridge] node %s: %s", node.metadata.name, text)
            self.runtime.tell(node, "NotInStepWithSlurm", text)  # codespell:ignore tell
