"""Gang plans: where each pod of a gang goes and what it holds there, as an annotation of its PodGroup has it.

A plan records names only (nodes, device paths, indices), which outlive a restart. One that is too large for an
annotation lies in a ConfigMap that is named by the attempt. `binding.plan_store` writes and replaces plans.
"""

from __future__ import annotations

import base64
import binascii
import re
import uuid
import zlib
from collections.abc import Container, Mapping
from typing import Any, Literal

import msgspec

from session_scheduler.errors import FluenceError
from session_scheduler.model.objects import PodGroup

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
_ATTEMPT = re.compile(r"[0-9A-Za-z-]{1,63}")
"""What an attempt is called: it becomes a pod's annotation and part of a ConfigMap's name, whoever wrote it."""
_UNREADABLE = (msgspec.DecodeError, RecursionError)
"""What decoding ends in where a text is not what it should be; the second where it nests too deep."""


class PlanError(FluenceError):
    """What stands where a plan should be is none."""


class NeedsConfigMap(PlanError):  # noqa: N818 (a state)
    """The plan lies in a ConfigMap, which is to be read first."""


def new_attempt() -> str:
    """A name for an attempt that is given only once."""
    return str(uuid.uuid4())


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


class GangPlan(msgspec.Struct, frozen=True):
    """One attempt to start a gang. `pods` is by uid."""

    attempt: str
    holder: str
    pods: dict[str, PlannedPod]
    state: Literal["active", "abort"] = "active"
    gone: int = 0
    """How many more pods it has, of which `of_interest` knows nothing."""

    def of_interest(self, uids: Container[str], names: Container[str], spare: int) -> GangPlan:
        """The plan with its pods that are known by uid or name, and so many others: no more is kept of a found one."""
        kept: dict[str, PlannedPod] = {}
        for uid, pod in self.pods.items():
            known = uid in uids or pod.name in names
            if known or spare > 0:
                spare -= not known
                kept[uid] = msgspec.structs.replace(pod, plugins=pod.plugins.copy())
        return msgspec.structs.replace(self, pods=kept, gone=self.gone + len(self.pods) - len(kept))


class WrittenPlan(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The annotation: what people may want to see as it is, and the pods packed, here or in a ConfigMap."""

    attempt: str
    holder: str = ""
    state: Literal["active", "abort"] = "active"
    pods: str = ""
    config_map: str = ""


def written_plan(pod_group: PodGroup) -> WrittenPlan | None:
    """The plan's annotation, None without one. Raises PlanError."""
    text = pod_group.metadata.annotations.get(PLAN_ANNOTATION)
    if text is None:
        return None
    try:
        return parsed_plan(text)
    except ValueError as error:
        raise PlanError(f"PodGroup {pod_group.key}: annotation {PLAN_ANNOTATION} is no plan: {error}") from None


def parsed_plan(text: str) -> WrittenPlan:
    """The annotation, read. Raises ValueError, also where it names what is not a plan's: others may write it."""
    try:
        written = msgspec.json.decode(text, type=WrittenPlan)
    except _UNREADABLE as error:
        raise ValueError(str(error)) from None
    if not _ATTEMPT.fullmatch(written.attempt):
        raise ValueError("its attempt is none")
    if written.config_map not in ("", config_map_name(written.attempt)):
        raise ValueError("its ConfigMap is not its own")
    return written


def attempt_of(pod_group: PodGroup) -> str:
    """The attempt of the plan that a PodGroup shows; empty without one, or where it is unreadable."""
    written = _readable(pod_group)
    return written.attempt if written is not None else ""


def is_active(pod_group: PodGroup, attempt: str) -> bool:
    """Whether a PodGroup shows this attempt, not being aborted."""
    written = _readable(pod_group)
    return written is not None and written.attempt == attempt and written.state == "active"


def _readable(pod_group: PodGroup) -> WrittenPlan | None:
    try:
        return written_plan(pod_group)
    except PlanError:
        return None


def plan_here(pod_group: PodGroup) -> GangPlan | None:
    """The plan on a PodGroup, None without one. Raises PlanError, `NeedsConfigMap` where it lies elsewhere."""
    written = written_plan(pod_group)
    if written is None:
        return None
    if written.config_map:
        raise NeedsConfigMap(f"PodGroup {pod_group.key}: its plan lies in ConfigMap {written.config_map}")
    return unpacked_plan(pod_group, written, written.pods)


def config_map_of(pod_group: PodGroup) -> str:
    """The name of the ConfigMap, in its namespace, in which a PodGroup's plan lies; empty where it lies in none."""
    return config_map_in(pod_group.metadata.annotations.get(PLAN_ANNOTATION))


def config_map_name(attempt: str) -> str:
    """What the ConfigMap of an attempt's plan is called."""
    return f"fluence-plan-{attempt}"


def config_map_in(text: str | None) -> str:
    """As `config_map_of`, of an annotation's text."""
    try:
        return parsed_plan(text).config_map if text is not None else ""
    except ValueError:
        return ""


def packed_pods(plan: GangPlan) -> str:
    """The plan's pods, packed. Raises PlanError where they are so many that `unpacked_plan` would refuse them."""
    pods = msgspec.json.encode(plan.pods, order="sorted")
    binary = zlib.compress(pods, 1)
    if len(pods) > _most_unpacked(binary):
        raise PlanError(f"a plan of {len(plan.pods)} pods has {len(pods)} bytes, more than a plan may have")
    return base64.b64encode(binary).decode()


def _most_unpacked(binary: bytes) -> int:
    return min(_LARGEST, _SMALL + _MOST_PACKED * len(binary))


def unpacked_plan(pod_group: PodGroup, written: WrittenPlan, packed: str) -> GangPlan:
    """The plan of an annotation with its pods. Raises PlanError."""
    try:
        binary = base64.b64decode(packed, validate=True)
        limit = _most_unpacked(binary)
        unpacking = zlib.decompressobj()
        text = unpacking.decompress(binary, limit)
        if unpacking.unconsumed_tail:
            raise PlanError(f"PodGroup {pod_group.key}: its plan cannot be read: it unpacks to more than {limit} bytes")
        pods = msgspec.json.decode(text, type=dict[str, PlannedPod])
    except (binascii.Error, zlib.error, ValueError, RecursionError) as error:
        raise PlanError(f"PodGroup {pod_group.key}: its plan cannot be read: {error}") from None
    return GangPlan(written.attempt, written.holder, pods, written.state)
