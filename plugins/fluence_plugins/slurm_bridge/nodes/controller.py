"""Keeps nodes of Kubernetes and of Slurm in step: a task of the plugin's own.

Cordoned nodes are drained in Slurm, external nodes are made, changed and taken away there, and nodes that Slurm has
are tainted, so that only its pods are let in. All that it knows is in Slurm and in the API server: another replica
goes on where one ended. What becomes of each node is decided in `external_nodes`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, assert_never

from fluence_plugins.slurm_bridge.names import (
    MANAGED_TAINT,
    NODE_NAME_LABEL,
    PARTITIONS_ANNOTATION,
    SCHEDULER_NAME,
    TOPOLOGY_ANNOTATION,
)
from fluence_plugins.slurm_bridge.nodes.external_nodes import (
    Change,
    Create,
    Delete,
    Drain,
    External,
    NodeRules,
    Step,
    Undrain,
    external,
    is_external,
    is_foreign,
    mark_of,
    missing_partitions,
    slurm_name,
    steps,
)
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
"""Between two looks at whether this replica leads."""
_AT_ONCE: Final = 16
"""Requests."""
_Item = TypeVar("_Item")


class Slurm(Protocol):
    """What of a SlurmClient is used here."""

    async def nodes(self) -> tuple[SlurmNode, ...]:
        """Every node that Slurm has."""

    async def partitions(self) -> tuple[str, ...]:
        """The names of the partitions."""

    async def create_node(self, conf: str) -> None:
        """Make a node."""

    async def update_node(
        self,
        name: str,
        *,
        state: str | None = None,
        reason: str | None = None,
        topology: str | None = None,
        comment: str | None = None,
    ) -> None:
        """Change what is given."""

    async def delete_node(self, name: str) -> None:
        """Take the node out of Slurm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """How nodes are kept in step. Times in seconds.

    `cluster` tells this cluster's nodes in Slurm from others'; empty for the uid of its namespace kube-system. Slurm
    is looked at when a node has changed, at most once in `rest`, and every `period`; what failed is tried again after
    `again`, then each time after twice as long.
    """

    rules: NodeRules = field(default_factory=NodeRules)
    cluster: str = ""
    scheduler_name: str = SCHEDULER_NAME
    period: float = 30.0
    again: float = 5.0
    rest: float = 0.5


async def run(
    cluster: Cluster,
    client: Slurm,
    runtime: Runtime,
    settings: NodeSettings,
    *,
    now: Callable[[], float] = time.monotonic,
) -> None:
    """Keep nodes in step, without end."""
    await NodeController(cluster, client, runtime, settings, now=now).run()


@dataclass(frozen=True, slots=True)
class _Problem:
    """What failed with a node, when that is to be tried again, how often it has failed, and what it was like."""

    text: str
    due: float
    times: int
    like: object


class NodeController:
    """See the module. `passes` counts the looks that went through."""

    def __init__(
        self,
        cluster: Cluster,
        client: Slurm,
        runtime: Runtime,
        settings: NodeSettings,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._runtime = runtime
        self._settings = settings
        self._now = now
        self._changed = asyncio.Event()
        self._nodes: dict[str, Node] | None = None
        """By name; None while it is not known which there are."""
        self._identity = settings.cluster
        self._problems: dict[str, _Problem] = {}
        """By name in Kubernetes, or in Slurm where there is no such node."""
        self._said: dict[str, str] = {}
        """What nodes were told last, by uid, as long as it holds."""
        self._refused: dict[str, str] = {}
        """Why nodes were not tainted, or taints not taken, by uid."""
        self._down = ""
        """Why the last look did not go through."""
        self._failures = 0
        self._next = 0.0
        """When to look, whether anything has changed or not; not before it after a failure."""
        self.passes = 0

    async def run(self) -> None:
        """Without end."""
        async with alongside(self._follow()):
            while True:
                await self._turn()

    # ------------------------------------------------------------------ what Kubernetes has

    async def _follow(self) -> None:
        failed = partial(log.warning, "[slurm-bridge] nodes cannot be followed: %s")
        await follow(
            self._cluster, Node, self._begin, failed=failed, pause=min(_NOT_ELECTED_SECONDS, self._settings.again)
        )

    def _begin(self, there: tuple[Node, ...]) -> Callable[[Node, bool], None]:
        nodes = self._nodes = {node.metadata.name: node for node in there}
        self._changed.set()
        return partial(self._take, nodes)

    def _take(self, nodes: dict[str, Node], node: Node, gone: bool) -> None:
        before = nodes.pop(node.metadata.name, None)
        if not gone:
            nodes[node.metadata.name] = node
        if gone or before is None or self._like(before) != self._like(node):
            self._changed.set()

    def _like(self, node: Node) -> object:
        """All of a node that is looked at here: kubelets write the rest of it all the time."""
        metadata, allocatable = node.metadata, node.status.allocatable
        resources = ("cpu", "memory", *(name for name, _ in self._settings.rules.resources))
        return (
            metadata.uid,
            metadata.labels,
            [metadata.annotations.get(name) for name in (PARTITIONS_ANNOTATION, TOPOLOGY_ANNOTATION)],
            node.spec,
            [allocatable.get(name) for name in resources],
            node.status.addresses,
            node.unreadable,
        )

    # ------------------------------------------------------------------ when to look

    async def _turn(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._wait()):
                if self._down or not self._runtime.elected:
                    await asyncio.Event().wait()  # nothing that changes lets it be sooner
                await self._changed.wait()
        if self._nodes is None or not self._runtime.elected or (self._down and self._now() < self._next):
            return
        self._changed.clear()
        try:
            await self._look(dict(self._nodes))
        except FluenceError as error:
            self._failed(str(error))
            return
        if self._down:
            log.info("[slurm-bridge] nodes are kept in step with Slurm again")
        self._down, self._failures = "", 0
        self.passes += 1
        now = self._now()
        due = min((problem.due for problem in self._problems.values()), default=math.inf)
        self._next = min(now + self._settings.period, max(due, now + self._settings.again))
        await asyncio.sleep(self._settings.rest)

    def _wait(self) -> float:
        if self._nodes is None or not self._runtime.elected:
            return min(_NOT_ELECTED_SECONDS, self._settings.again)
        return max(0.0, self._next - self._now())

    def _failed(self, text: str) -> None:
        if text != self._down:
            log.warning("[slurm-bridge] nodes cannot be kept in step with Slurm: %s", text)
        self._down = text
        self._next = self._now() + self._later(self._failures)
        self._failures += 1
        self._changed.set()

    def _later(self, times: int) -> float:
        return self._settings.again * (1 << min(times, _MOST_DOUBLINGS))

    # ------------------------------------------------------------------ a look

    async def _look(self, nodes: Mapping[str, Node]) -> None:
        """Look at all nodes and do what is to be done. Raises FluenceError where Slurm cannot be asked.

        `nodes` are those from before Slurm is asked: who drains in Slurm and then cordons keeps the drain.
        """
        if not self._identity:
            self._identity = (await self._cluster.get(Namespace, "", "kube-system")).metadata.uid
        found = {node.name: node for node in await self._client.nodes()}
        partitions = await self._client.partitions()
        named = self._named(nodes)
        self._problems = {name: one for name, one in self._problems.items() if name in nodes or name in found}
        uids = {node.metadata.uid for node in nodes.values()}
        for texts in (self._said, self._refused):
            for uid in texts.keys() - uids:
                del texts[uid]
        # What of a node cannot be read may be its labels: then nobody knows which of Slurm's nodes are nobody's.
        unknown = any(node.unreadable for node in nodes.values())
        names = named if unknown else dict.fromkeys((*named, *found))
        there = set(found)
        await _some_at_once(names, lambda name: self._sync(name, named.get(name), found.get(name), partitions, there))
        mark = mark_of(self._identity)
        managed = {name for name in there if name not in found or not is_foreign(found[name], mark)}
        by_node = {node.metadata.name: name for name, node in named.items()}
        await _some_at_once(
            [node for node in nodes.values() if not node.unreadable],
            lambda node: self._taint(node, by_node.get(node.metadata.name, ""), managed),
        )

    def _named(self, nodes: Mapping[str, Node]) -> dict[str, Node]:
        """Nodes by their names in Slurm, each name to the oldest that has it, without what cannot be read whole."""
        named: dict[str, Node] = {}
        readable = [node for node in nodes.values() if not node.unreadable]
        for node in sorted(readable, key=lambda one: (one.metadata.creation_timestamp or "", one.metadata.name)):
            try:
                name = slurm_name(node)
            except ValueError as error:
                self._tell(node, str(error))
                continue
            other = named.setdefault(name, node)
            if other is not node:
                self._tell(node, f"its name in Slurm, {name}, is already that of node {other.metadata.name}: "
                                 f"give it another (label {NODE_NAME_LABEL})")  # fmt: skip
        return named

    async def _sync(
        self, name: str, node: Node | None, found: SlurmNode | None, partitions: Collection[str], there: set[str]
    ) -> None:
        """Do what is to be done for one name in Slurm; `there` is kept to be the names that Slurm has."""
        key = node.metadata.name if node is not None else name
        spec, wrong = None, ""
        mark = mark_of(self._identity)
        try:
            spec = external(node, self._settings.rules, partitions) if node is not None and is_external(node) else None
            todo = steps(node, found, spec, mark=mark, partitions=partitions)
        except ValueError as error:
            wrong = str(error)
            todo = steps(node, found, None, mark=mark, partitions=partitions)
        if spec is not None and found is not None and not wrong and not todo:
            wrong = missing_partitions(spec, found)
        like = (self._like(node) if node is not None else None, found, tuple(partitions))
        known = self._problems.get(key)
        if known is not None and known.like == like and self._now() < known.due:
            return
        try:
            for step in todo:
                if not self._runtime.elected:
                    return
                await self._do(name, step, there)
        except (UnavailableError, TokenError):
            raise
        except NodeBusyError:
            log.debug("[slurm-bridge] node %s: has jobs still", name)
        except (NodeExistsError, UnknownNodeError) as error:
            log.info("[slurm-bridge] node %s: has changed in Slurm meanwhile: %s", name, error)
            self._keep(key, str(error), like)
            return
        except (FluenceError, ValueError) as error:
            wrong = str(error)
            self._keep(key, wrong, like)
            self._tell_of(node, name, wrong)
            return
        self._problems.pop(key, None)
        self._tell_of(node, name, wrong)

    async def _do(self, name: str, step: Step, there: set[str]) -> None:
        match step:
            case Create(spec):
                await self._create(spec)
                there.add(name)
            case Delete():
                await self._client.delete_node(name)
                there.discard(name)
                log.info("[slurm-bridge] node %s: is taken out of Slurm", name)
            case Drain(reason):
                await self._client.update_node(name, state="DRAIN", reason=reason)
                log.info("[slurm-bridge] node %s: is drained in Slurm: %s", name, reason)
            case Undrain():
                await self._client.update_node(name, state="UNDRAIN")
                log.info("[slurm-bridge] node %s: is not drained in Slurm any more", name)
            case Change(topology, comment):
                await self._client.update_node(name, topology=topology, comment=comment)
            case _:
                assert_never(step)

    async def _create(self, spec: External) -> None:
        await self._client.create_node(spec.conf)
        log.info("[slurm-bridge] node %s: is made in Slurm, with %d CPUs, %d MiB and %s, in %s", spec.name, spec.cpus,
                 spec.memory_mib, spec.gres or "no GRES", ", ".join(spec.partitions))  # fmt: skip

    def _keep(self, key: str, text: str, like: object) -> None:
        known = self._problems.get(key)
        times = known.times + 1 if known is not None and known.text == text and known.like == like else 0
        self._problems[key] = _Problem(text, self._now() + self._later(times), times, like)

    # ------------------------------------------------------------------ taints

    async def _taint(self, node: Node, name: str, managed: Collection[str]) -> None:
        """Keep pods of others away from a node that Slurm gives away, and let them come where it does so no more."""
        own = Taint(key=MANAGED_TAINT, value=self._settings.scheduler_name, effect="NoExecute")
        taints = node.spec.taints
        if name in managed:
            wanted = (*(one for one in taints if (one.key, one.effect) != (own.key, own.effect)), own)
        elif is_external(node) and name:
            return  # it is to be there, and was not made, or not made anew, yet
        else:
            wanted = tuple(one for one in taints if one != own)
        if set(wanted) == set(taints) or not self._runtime.elected:
            return
        key = node.metadata.uid
        try:
            await self._cluster.set_taints(node, wanted)
        except ChangedMeanwhileError:
            self._changed.set()  # by the time that this was heard, so is the change
        except FluenceError as error:
            if self._refused.get(key) != str(error):
                log.warning("[slurm-bridge] node %s: its taint cannot be set: %s", node.metadata.name, error)
            self._refused[key] = str(error)
        else:
            self._refused.pop(key, None)

    # ------------------------------------------------------------------ what people are told

    def _tell_of(self, node: Node | None, name: str, text: str) -> None:
        if node is not None:
            self._tell(node, text)
        elif text:
            log.warning("[slurm-bridge] node %s of Slurm: %s", name, text)

    def _tell(self, node: Node, text: str) -> None:
        """Let the node have an event; the same is said once as long as it holds. An empty text ends that."""
        uid = node.metadata.uid
        if not text:
            self._said.pop(uid, None)
        elif self._said.get(uid) != text:
            self._said[uid] = text
            log.warning("[slurm-bridge] node %s: %s", node.metadata.name, text)
            self._runtime.tell(node, "NotInStepWithSlurm", text)


async def _some_at_once(items: Iterable[_Item], work: Callable[[_Item], Awaitable[None]]) -> None:
    """Each item's work. All that has begun ends before the first error is raised, and nothing begins after it."""
    every = list(items)
    for start in range(0, len(every), _AT_ONCE):
        done = await asyncio.gather(*map(work, every[start : start + _AT_ONCE]), return_exceptions=True)
        for error in done:
            if error is not None:
                raise error
