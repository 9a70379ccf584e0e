"""What a scheduler serves alone, as an annotation of its Lease, and the check that no other scheduler serves it, too.

A leader writes its claims, then reads those of the others, and only then uses them. So if two schedulers claim the same
name at once, at least one sees the other's claim. See docs/adr/0052.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from typing import Final

import msgspec
import structlog

from session_scheduler.cluster.errors import Forbidden
from session_scheduler.cluster.port import Cluster, Labels
from session_scheduler.cluster.refused_kinds import RETRY_SECONDS
from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.errors import InputError
from session_scheduler.model.groups import DEFAULT_QUEUE
from session_scheduler.model.objects import Lease

_log = structlog.get_logger(__name__)
ANNOTATION: Final = "fluence.flux-framework.org/partition"
"""On a Lease: what its holder serves alone, as JSON, so that the claims of two schedulers do not overlap."""
_LIMIT: Final = 50_000
"""The most bytes of the annotation, which each renewal of the Lease writes."""
_PAUSE: Final = 1.0

Names = Mapping[str, Collection[str]]
"""By kind, such as "resource": names that only one scheduler may have."""


class PartitionError(InputError):
    """The scheduler serves what another one serves, too."""


class Claims(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What one scheduler serves. `node_selector`: None for all nodes."""

    node_selector: dict[str, str | None] | None = None
    scheduler_names: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    device_pools: tuple[str, ...] = ()
    plugins: dict[str, tuple[str, ...]] = {}


_claims: Final = msgspec.json.Decoder(Claims)


class PartitionClaims:
    """The claims of the scheduler with this configuration."""

    def __init__(
        self,
        config: SchedulerConfig,
        write: Callable[[], Awaitable[None]] | None = None,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`write` writes the annotations to the scheduler's Lease now."""
        self._config = config
        self._write = write
        self._sleep = sleep
        self._changing = asyncio.Lock()
        self.own = _of_config(config)

    @property
    def annotations(self) -> Mapping[str, str]:
        """The annotation of the scheduler's Lease. Without a partition it shows only that: all nodes are served."""
        shown = self.own if self._config.partition is not None else Claims(scheduler_names=self.own.scheduler_names)
        return {ANNOTATION: msgspec.json.encode(shown, order="sorted").decode()}

    async def check(self, cluster: Cluster) -> None:
        """Raise PartitionError if the claims of another scheduler overlap these.

        Schedulers without a partition are not compared with each other. Raises ClusterError.
        """
        self._check_size()
        await self._compare(cluster)

    async def confirm(self, cluster: Cluster) -> None:
        """Write the claims, then `check`. Raises PartitionError or ClusterError."""
        self._check_size()
        if self._write is not None:
            await self._write()
        await self._compare(cluster)

    def put(self, plugin: str, names: Names) -> None:
        """Replace the names of a plugin without a check."""
        self.own = self._with(plugin, names)

    async def claim(self, cluster: Cluster, plugin: str, names: Names) -> None:
        """Replace the names of a plugin, and confirm new ones.

        Raises PartitionError or ClusterError; in that case it changes nothing.
        """
        async with self._changing:
            before, self.own = self.own, self._with(plugin, names)
            if all({*found} <= {*before.plugins.get(kind, ())} for kind, found in self.own.plugins.items()):
                return
            try:
                await self.confirm(cluster)
            except BaseException:
                self.own = before
                raise

    def _with(self, plugin: str, names: Names) -> Claims:
        head = f"plugin {plugin}: "
        others = {kind: known for kind, known in self.own.plugins.items() if not kind.startswith(head)}
        own = {head + kind: tuple(sorted(of_kind)) for kind, of_kind in names.items() if of_kind}
        return msgspec.structs.replace(self.own, plugins=others | own)

    def _check_size(self) -> None:
        size = len(msgspec.json.encode(self.own))
        if self._config.leader_election.enabled and self._config.partition is not None and size > _LIMIT:
            raise PartitionError(
                f"{self._config.source}: partition: its queues and resources take {size} bytes in an annotation of the "
                f"Lease, and the limit is {_LIMIT}; use fewer or shorter names"
            )

    async def _compare(self, cluster: Cluster) -> None:
        if not self._config.leader_election.enabled:
            return
        partitioned = self._config.partition is not None
        lines = [
            f"{self._config.source}: {line}"
            for lease in await self._leases(cluster)
            if lease.metadata.name != self._config.leader_election.name
            if (other := _read(lease)) is not None and (partitioned or other.node_selector is not None)
            for line in self._overlaps(self.own, other, f"the scheduler with Lease {lease.key}")
        ]
        if lines:
            raise PartitionError(*lines)

    async def _leases(self, cluster: Cluster) -> Sequence[Lease]:
        """The Leases with claims. Retries for a while if the API server refuses to list them."""
        namespace, refused = self._config.leader_election.namespace, 0.0
        while True:
            try:
                return (await cluster.list(Lease, namespace=namespace, keep=_is_claim)).items
            except Forbidden as error:
                if self._config.partition is None:
                    _log.warning("cannot check whether other schedulers serve part of the cluster", why=str(error))
                    return ()
                if refused >= RETRY_SECONDS:
                    raise PartitionError(
                        f"{self._config.source}: partition: the scheduler needs permission to list Leases in "
                        f"{namespace}, because they show the partitions of other schedulers; grant it as in the Role "
                        f"fluence of deploy/fluence.yaml ({error})"
                    ) from error
                _log.warning("retrying a failed request", request="list of Lease", after=_PAUSE, why=str(error))
            await self._sleep(_PAUSE)
            refused += _PAUSE

    def _overlaps(self, own: Claims, other: Claims, whose: str) -> Iterator[str]:
        if own.node_selector is None:
            yield (f"partition: is missing, but {whose} serves the nodes with {_shown(other.node_selector)}; set "
                   "partition.nodeSelector in both configurations")  # fmt: skip
        elif other.node_selector is None:
            yield f"partition.nodeSelector: {whose} serves all nodes; set its partition.nodeSelector, too"
        elif not are_disjoint(own.node_selector, other.node_selector):
            yield (f"partition.nodeSelector: {_shown(own.node_selector)} may select the same nodes as "
                   f"{_shown(other.node_selector)} of {whose}; use different values of one label")  # fmt: skip
        for field, mine, theirs in (
            ("profiles[{}].schedulerName", own.scheduler_names, other.scheduler_names),
            ("queues[{}].name", own.queues, {*other.queues} - {DEFAULT_QUEUE}),  # each partition has that one
            ("partition.devicePools[{}]", own.device_pools, other.device_pools),
        ):
            for index, name in enumerate(mine):
                if name in theirs:
                    yield f"{field.format(index)}: {name!r} also belongs to {whose}; remove it from one configuration"
        for kind, names in sorted(own.plugins.items()):
            for name in sorted(set(names).intersection(other.plugins.get(kind, ()))):
                yield f"{kind} {name!r} also belongs to {whose}; remove it from one configuration"


def are_disjoint(one: Labels, other: Labels) -> bool:
    """Whether no labels match both: one key must have different values."""
    return any(key in other and other[key] != value for key, value in one.items())


def _of_config(config: SchedulerConfig) -> Claims:
    partition = config.partition
    return Claims(
        dict(partition.node_selector) if partition is not None else None,
        config.scheduler_names,
        tuple(queue.name for queue in config.queues),
        partition.device_pools if partition is not None else (),
    )


def _is_claim(lease: Lease) -> bool:
    return bool(lease.spec.holder_identity) and ANNOTATION in lease.metadata.annotations


def _read(lease: Lease) -> Claims | None:
    try:
        return _claims.decode(lease.metadata.annotations[ANNOTATION])
    except msgspec.DecodeError as error:
        _log.warning("ignoring the invalid partition of a scheduler", lease=lease.key, why=str(error))
        return None


def _shown(labels: Labels | None) -> str:
    pairs = (f"{key}: {'null' if value is None else value}" for key, value in (labels or {}).items())
    return f"{{{', '.join(pairs)}}}"
