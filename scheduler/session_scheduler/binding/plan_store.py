"""Plans: where each pod of a gang goes and what it holds there, written on its PodGroup before the first bind.

A plan is written, changed and taken away by compare-and-swap, so of two replicas one wins; whoever finds a plan after a
crash knows what its writer wanted. It records names only (nodes, device paths, indices), which outlive a restart. One
that is too large for an annotation lies in a ConfigMap that is named by the attempt and written first.
"""

from __future__ import annotations

import base64
import binascii
import re
import uuid
import zlib
from collections.abc import Container, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Literal

import msgspec
import structlog

from session_scheduler.cluster.errors import AlreadyExists, ClusterError, Conflict, Invalid, NotFound, Unavailable
from session_scheduler.cluster.port import Cluster
from session_scheduler.errors import FluenceError
from session_scheduler.model.objects import ConfigMap, ObjectMeta, OwnerReference, PodGroup

_log = structlog.get_logger(__name__)

PLAN_ANNOTATION = "fluence.flux-framework.org/plan"
"""On a PodGroup: its plan."""
ATTEMPT_ANNOTATION = "fluence.flux-framework.org/attempt"
"""On a pod: the plan that it was bound by; or, while it is not bound, anything new that moves its resourceVersion."""
ANNOTATION_LIMIT = 200 * 1024
"""Bytes of a plan on its PodGroup, with what else is there; all annotations of an object may have 256 KiB."""
_LARGEST = 16 * 1024 * 1024
"""Bytes of an unpacked plan: what others wrote into one is not to fill the memory."""
_MOST_PACKED = 100
"""Bytes of a plan, beyond the first 64 KiB, that are packed into one at most."""
_SMALL = 64 * 1024
_TRIES = 5
_KEY = "pods"
_ATTEMPT = re.compile(r"[0-9A-Za-z-]{1,63}")
"""What an attempt is called: it becomes a pod's annotation and part of a ConfigMap's name, whoever wrote it."""
_UNREADABLE = (msgspec.DecodeError, RecursionError)
"""What decoding ends in where a text is not what it should be; the second where it nests too deep."""


class PlanError(FluenceError):
    """What stands where a plan should be is none."""


class PlannedPod(msgspec.Struct, frozen=True, omit_defaults=True):
    """One pod of a plan: its node, and what each plugin holds for it there. Make one with `of`."""

    name: str
    node: str
    plugins: msgspec.Raw = msgspec.Raw(b"{}")
    """As it is written: what others may have written there is decoded only for a pod that is to be bound by it."""
    bound: bool = False
    """Whether it was bound already when the plan was made: by another one."""

    @classmethod
    def of(cls, name: str, node: str, plugins: Mapping[str, Any], *, bound: bool = False) -> PlannedPod:
        """`plugins`: what each of them holds for the pod, as JSON values."""
        return cls(name, node, msgspec.Raw(msgspec.json.encode(plugins, order="sorted")), bound)

    @property
    def holds(self) -> dict[str, Any]:
        """What each plugin holds for the pod; nothing where that cannot be read."""
        try:
            return msgspec.json.decode(self.plugins, type=dict[str, Any])
        except _UNREADABLE:
            return {}


class Plan(msgspec.Struct, frozen=True):
    """One attempt to start a gang. `pods` is by uid."""

    attempt: str
    holder: str
    pods: dict[str, PlannedPod]
    state: Literal["active", "abort"] = "active"
    gone: int = 0
    """How many more pods it has, of which `of_interest` knows nothing."""

    def of_interest(self, uids: Container[str], names: Container[str], spare: int) -> Plan:
        """The plan with its pods that are known by uid or name, and so many others: no more is kept of a found one."""
        kept: dict[str, PlannedPod] = {}
        for uid, pod in self.pods.items():
            known = uid in uids or pod.name in names
            if known or spare > 0:
                spare -= not known
                kept[uid] = msgspec.structs.replace(pod, plugins=pod.plugins.copy())
        return msgspec.structs.replace(self, pods=kept, gone=self.gone + len(self.pods) - len(kept))


class _Written(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The annotation: what people may want to see as it is, and the pods packed, here or in a ConfigMap."""

    attempt: str
    holder: str = ""
    state: Literal["active", "abort"] = "active"
    pods: str = ""
    config_map: str = ""


def new_attempt() -> str:
    """A name for an attempt that nobody else gives."""
    return str(uuid.uuid4())


def attempt_of(pod_group: PodGroup) -> str:
    """The attempt of the plan that a PodGroup shows; empty without one, or where it is unreadable."""
    try:
        written = _annotation(pod_group)
    except PlanError:
        return ""
    return written.attempt if written is not None else ""


def is_active(pod_group: PodGroup, attempt: str) -> bool:
    """Whether a PodGroup shows this attempt, not being aborted."""
    try:
        written = _annotation(pod_group)
    except PlanError:
        return False
    return written is not None and written.attempt == attempt and written.state == "active"


def plan_here(pod_group: PodGroup) -> Plan | None:
    """The plan on a PodGroup, None without one. Raises PlanError, `NeedsConfigMap` where it lies elsewhere."""
    written = _annotation(pod_group)
    if written is None:
        return None
    if written.config_map:
        raise NeedsConfigMap(f"{_name(pod_group)}: its plan lies in ConfigMap {written.config_map}")
    return _plan(pod_group, written, written.pods)


def config_map_of(pod_group: PodGroup) -> str:
    """The name of the ConfigMap, in its namespace, in which a PodGroup's plan lies; empty where it lies in none."""
    return _config_map(pod_group.metadata.annotations.get(PLAN_ANNOTATION))


class NeedsConfigMap(PlanError):  # noqa: N818 (a state)
    """The plan lies in a ConfigMap, which is to be read first."""


class PlanStore:
    """Reads and swaps plans through a cluster port; `holder` names this replica in those that it writes."""

    def __init__(
        self, cluster: Cluster, holder: str = "", slots: AbstractAsyncContextManager[Any] | None = None
    ) -> None:
        """`slots` bounds how many are read and swapped at once."""
        self._cluster = cluster
        self._slots = slots or nullcontext()
        self.holder = holder

    async def read(self, pod_group: PodGroup) -> Plan | None:
        """The plan that a PodGroup shows. Raises PlanError, ClusterError."""
        written = _annotation(pod_group)
        if written is None or not written.config_map:
            return plan_here(pod_group)
        namespace = pod_group.metadata.namespace
        try:
            found = await self._cluster.get(ConfigMap, namespace, written.config_map)
        except NotFound:
            raise PlanError(f"{_name(pod_group)}: its plan's ConfigMap {written.config_map} does not exist") from None
        return _plan(pod_group, written, found.data.get(_KEY, ""))

    async def fresh(self, pod_group: PodGroup) -> PodGroup:
        """The same PodGroup as it is now. Raises NotFound, also where another has its name; ClusterError."""
        metadata = pod_group.metadata
        found = await self._cluster.get(PodGroup, metadata.namespace, metadata.name, api_version=pod_group.api_version)
        if found.metadata.uid != metadata.uid:
            raise NotFound(f"{_name(pod_group)} was deleted and created again")
        return found

    async def swap(self, pod_group: PodGroup, plan: Plan | None) -> PodGroup:
        """Put a plan (None: none) in place of the one that `pod_group` shows. Returns the PodGroup with it.

        Raises Conflict where it shows another one by now, Unavailable where nobody knows, other ClusterErrors.
        """
        async with self._slots:
            return await self._swap(pod_group, plan)

    async def _swap(self, pod_group: PodGroup, plan: Plan | None) -> PodGroup:
        before = pod_group.metadata.annotations.get(PLAN_ANNOTATION)
        text = await self._text(pod_group, plan) if plan is not None else None
        try:
            swapped = await self._exchange(pod_group, before, text)
        except Unavailable:
            raise  # it may be there
        except ClusterError:
            await self._clear(pod_group, text, before)
            raise
        await self._clear(pod_group, before, text)
        return swapped

    async def restate(
        self, pod_group: PodGroup, *, state: Literal["active", "abort"] | None = None, holder: str | None = None
    ) -> PodGroup:
        """Put the plan that `pod_group` shows into another state, or other hands; its pods stay as they are written.

        Returns and raises as `swap`; Conflict, too, where it shows none.
        """
        before = pod_group.metadata.annotations.get(PLAN_ANNOTATION, "")
        try:
            written = _written(before)
        except ValueError:
            raise Conflict(f"{_name(pod_group)} has no plan") from None
        written = msgspec.structs.replace(
            written,
            state=written.state if state is None else state,
            holder=written.holder if holder is None else holder,
        )
        async with self._slots:
            return await self._exchange(pod_group, before, msgspec.json.encode(written).decode())

    async def _exchange(self, pod_group: PodGroup, before: str | None, text: str | None) -> PodGroup:
        """Put one annotation in place of the other, whatever else is written to the PodGroup meanwhile."""
        for left in reversed(range(_TRIES)):
            version = pod_group.metadata.resource_version
            try:
                return await self._cluster.patch_metadata(
                    pod_group, annotations={PLAN_ANNOTATION: text}, resource_version=version
                )
            except (Conflict, Unavailable):
                pod_group = await self.fresh(pod_group)
                shown = pod_group.metadata.annotations.get(PLAN_ANNOTATION)
                if shown == text:
                    return pod_group
                if shown != before:
                    raise Conflict(f"{_name(pod_group)} has another plan by now") from None
                if not left:
                    raise
        raise AssertionError("unreachable: the last try returns or raises")

    async def _text(self, pod_group: PodGroup, plan: Plan) -> str:
        packed = _packed(plan)
        written = _Written(plan.attempt, plan.holder, plan.state, packed)
        others = {key: value for key, value in pod_group.metadata.annotations.items() if key != PLAN_ANNOTATION}
        if len(packed) > ANNOTATION_LIMIT - sum(len(key) + len(value.encode()) for key, value in others.items()):
            written = _Written(plan.attempt, plan.holder, plan.state, config_map=_config_map_name(plan.attempt))
            await self._create(pod_group, written.config_map, packed)
        return msgspec.json.encode(written).decode()

    async def _create(self, pod_group: PodGroup, name: str, packed: str) -> None:
        """Write a plan's ConfigMap; it goes with its PodGroup at the latest."""
        metadata = pod_group.metadata
        owner = OwnerReference(api_version=pod_group.api_version, kind="PodGroup", name=metadata.name, uid=metadata.uid)
        labels = {"app.kubernetes.io/managed-by": "fluence"}
        own = ObjectMeta(name=name, namespace=metadata.namespace, labels=labels, owner_references=(owner,))
        try:
            await self._cluster.create(ConfigMap(metadata=own, data={_KEY: packed}))
        except AlreadyExists:
            return  # of the same attempt: an earlier try, or the same plan in another state

    async def _clear(self, pod_group: PodGroup, gone: str | None, now: str | None) -> None:
        """Delete the ConfigMap of a plan that is no more, or never was."""
        old, new = (_config_map(text) for text in (gone, now))
        if not old or old == new:
            return
        metadata = ObjectMeta(name=old, namespace=pod_group.metadata.namespace)
        try:
            await self._cluster.delete(ConfigMap(metadata=metadata))
        except NotFound:
            return
        except ClusterError as error:
            _log.warning("a plan's ConfigMap is left behind", name=old, namespace=metadata.namespace, error=str(error))


def _name(pod_group: PodGroup) -> str:
    return f"PodGroup {pod_group.key}"


def _config_map_name(attempt: str) -> str:
    return f"fluence-plan-{attempt}"


def _annotation(pod_group: PodGroup) -> _Written | None:
    text = pod_group.metadata.annotations.get(PLAN_ANNOTATION)
    if text is None:
        return None
    try:
        return _written(text)
    except ValueError as error:
        raise PlanError(f"{_name(pod_group)}: annotation {PLAN_ANNOTATION} is no plan: {error}") from None


def _written(text: str) -> _Written:
    """The annotation, read. Raises ValueError, also where it names what is not a plan's: others may write it."""
    try:
        written = msgspec.json.decode(text, type=_Written)
    except _UNREADABLE as error:
        raise ValueError(str(error)) from None
    if not _ATTEMPT.fullmatch(written.attempt):
        raise ValueError("its attempt is none")
    if written.config_map not in ("", _config_map_name(written.attempt)):
        raise ValueError("its ConfigMap is not its own")
    return written


def _config_map(text: str | None) -> str:
    try:
        return _written(text).config_map if text is not None else ""
    except ValueError:
        return ""


def _packed(plan: Plan) -> str:
    """The pods, packed. Raises Invalid for what nobody would read again."""
    pods = msgspec.json.encode(plan.pods, order="sorted")
    binary = zlib.compress(pods, 1)
    if len(pods) > _most_unpacked(binary):
        raise Invalid(f"a plan of {len(plan.pods)} pods has {len(pods)} bytes, more than a plan may have")
    return base64.b64encode(binary).decode()


def _most_unpacked(binary: bytes) -> int:
    return min(_LARGEST, _SMALL + _MOST_PACKED * len(binary))


def _plan(pod_group: PodGroup, written: _Written, packed: str) -> Plan:
    try:
        binary = base64.b64decode(packed, validate=True)
        limit = _most_unpacked(binary)
        unpacking = zlib.decompressobj()
        text = unpacking.decompress(binary, limit)
        if unpacking.unconsumed_tail:
            raise PlanError(f"{_name(pod_group)}: its plan cannot be read: it unpacks to more than {limit} bytes")
        pods = msgspec.json.decode(text, type=dict[str, PlannedPod])
    except (binascii.Error, zlib.error, ValueError, RecursionError) as error:
        raise PlanError(f"{_name(pod_group)}: its plan cannot be read: {error}") from None
    return Plan(written.attempt, written.holder, pods, written.state)
