"""Gang plan: the annotation of a PodGroup that records each pod's node, and what plugins reserved for it there.

The scheduler writes it before it binds a gang, so that another replica can finish the bind. A plan contains only names
that outlive a restart (nodes, device paths, indices). If it is too large for an annotation, its pods go to a ConfigMap
in the scheduler's namespace, named after the PodGroup's uid and the attempt. `binding.plan_store` writes and replaces
plans.
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
"""On a bound pod: the attempt that bound it. On an unbound pod: any new value, which changes its resourceVersion."""
ANNOTATION_LIMIT = 200 * 1024
"""The maximum size in bytes of a PodGroup's annotations with the plan; the API server allows 256 KiB."""
_LARGEST = 16 * 1024 * 1024
"""The maximum size in bytes of an unpacked plan, so that a plan by another writer cannot exhaust the memory."""
_MAX_RATIO = 100
"""The highest compression ratio of a plan, beyond its first 64 KiB."""
_SMALL = 64 * 1024
_PREFIX = "fluence-plan-"
_ATTEMPT = re.compile(r"[0-9A-Za-z-]{1,63}")
"""A valid attempt: it becomes the value of a pod's annotation, and part of a ConfigMap's name."""
_UNREADABLE = (msgspec.DecodeError, RecursionError)
"""The errors of decoding an invalid text; RecursionError if it is nested too deeply."""


class PlanError(FluenceError):
    """The plan cannot be read, or is too large to write."""


class NeedsConfigMap(PlanError):  # noqa: N818 (a state)
    """The plan is in a ConfigMap, which the caller must read first."""


def new_attempt() -> str:
    """A unique name for an attempt."""
    return str(uuid.uuid4())


class PlannedPod(msgspec.Struct, frozen=True, omit_defaults=True):
    """One pod of a plan: its node, and what each plugin reserved for it there. Create it with `of`."""

    name: str
    node: str
    plugins: msgspec.Raw = msgspec.Raw(b"{}")
    """Encoded JSON, possibly by another writer: decoded only for a pod that the plan binds."""
    bound: bool = False
    """Whether another plan had bound the pod before this plan was made."""

    @classmethod
    def of(cls, name: str, node: str, plugins: Mapping[str, Any], *, bound: bool = False) -> PlannedPod:
        """`plugins`: by plugin, what it reserved for the pod, as JSON values."""
        return cls(name, node, msgspec.Raw(msgspec.json.encode(plugins, order="sorted")), bound)

    @property
    def holds(self) -> dict[str, Any]:
        """By plugin: what it reserved for the pod; empty if that cannot be decoded."""
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
    """How many pods `of_interest` has left out."""

    def of_interest(self, uids: Container[str], names: Container[str], spare: int) -> GangPlan:
        """The plan with only the pods that have one of these uids or names, and up to `spare` others.

        Anyone who can create a PodGroup can write a plan; this bounds what the scheduler keeps of it.
        """
        kept: dict[str, PlannedPod] = {}
        for uid, pod in self.pods.items():
            known = uid in uids or pod.name in names
            if known or spare > 0:
                spare -= not known
                kept[uid] = msgspec.structs.replace(pod, plugins=pod.plugins.copy())
        return msgspec.structs.replace(self, pods=kept, gone=self.gone + len(self.pods) - len(kept))


class WrittenPlan(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The annotation: a few readable fields, and the pods packed, here or in a ConfigMap."""

    attempt: str
    holder: str = ""
    state: Literal["active", "abort"] = "active"
    pods: str = ""
    config_map: str = ""


def written_plan(pod_group: PodGroup) -> WrittenPlan | None:
    """The parsed plan annotation; None if there is none. Raises PlanError."""
    text = pod_group.metadata.annotations.get(PLAN_ANNOTATION)
    if text is None:
        return None
    try:
        return parsed_plan(text, pod_group.metadata.uid)
    except ValueError as error:
        message = f"PodGroup {pod_group.key}: annotation {PLAN_ANNOTATION} is not a valid plan: {error}"
        raise PlanError(message) from None


def parsed_plan(text: str, uid: str) -> WrittenPlan:
    """Parse the annotation of the PodGroup with this uid.

    Raises ValueError, including for an attempt or ConfigMap name that Fluence never writes for this PodGroup.
    """
    try:
        written = msgspec.json.decode(text, type=WrittenPlan)
    except _UNREADABLE as error:
        raise ValueError(str(error)) from None
    if not _ATTEMPT.fullmatch(written.attempt):
        raise ValueError("attempt is not a valid name")
    if written.config_map not in ("", config_map_name(uid, written.attempt)):
        raise ValueError("configMap does not match the PodGroup's uid and the attempt")
    return written


def attempt_of(pod_group: PodGroup) -> str:
    """The attempt of the plan on a PodGroup; empty if there is no plan, or it is unreadable."""
    written = _readable(pod_group)
    return written.attempt if written is not None else ""


def is_active(pod_group: PodGroup, attempt: str) -> bool:
    """Whether the plan on a PodGroup is of this attempt, and not aborted."""
    written = _readable(pod_group)
    return written is not None and written.attempt == attempt and written.state == "active"


def _readable(pod_group: PodGroup) -> WrittenPlan | None:
    try:
        return written_plan(pod_group)
    except PlanError:
        return None


def plan_here(pod_group: PodGroup) -> GangPlan | None:
    """The plan on a PodGroup; None if there is none. Raises PlanError, or NeedsConfigMap if it is in one."""
    written = written_plan(pod_group)
    if written is None:
        return None
    if written.config_map:
        raise NeedsConfigMap(f"PodGroup {pod_group.key}: its plan is in ConfigMap {written.config_map}")
    return unpacked_plan(pod_group, written, written.pods)


def config_map_of(pod_group: PodGroup) -> str:
    """The name of the ConfigMap with a PodGroup's plan, in the scheduler's namespace; empty if there is none."""
    return config_map_in(pod_group.metadata.annotations.get(PLAN_ANNOTATION), pod_group.metadata.uid)


def config_map_name(uid: str, attempt: str) -> str:
    """The name of the ConfigMap for an attempt's plan, of the PodGroup with this uid.

    With the uid in it, no PodGroup can name the plan of another.
    """
    return f"{_PREFIX}{uid}.{attempt}"


def uid_in(config_map: str) -> str:
    """The uid of the PodGroup whose plan a ConfigMap of this name contains; empty for another ConfigMap."""
    uid, dot, _ = config_map.removeprefix(_PREFIX).partition(".")
    return uid if dot and config_map.startswith(_PREFIX) else ""


def config_map_in(text: str | None, uid: str) -> str:
    """Like `config_map_of`, from the annotation's text and the PodGroup's uid."""
    try:
        return parsed_plan(text, uid).config_map if text is not None else ""
    except ValueError:
        return ""


def packed_pods(plan: GangPlan) -> str:
    """The plan's pods, packed. Raises PlanError if there are more bytes than `unpacked_plan` accepts."""
    pods = msgspec.json.encode(plan.pods, order="sorted")
    binary = zlib.compress(pods, 1)
    limit = _most_unpacked(binary)
    if len(pods) > limit:
        raise PlanError(f"the plan of {len(plan.pods)} pods has {len(pods)} bytes, more than {limit}")
    return base64.b64encode(binary).decode()


def _most_unpacked(binary: bytes) -> int:
    return min(_LARGEST, _SMALL + _MAX_RATIO * len(binary))


def unpacked_plan(pod_group: PodGroup, written: WrittenPlan, packed: str) -> GangPlan:
    """The plan of an annotation, with its pods from `packed`. Raises PlanError."""
    try:
        binary = base64.b64decode(packed, validate=True)
        limit = _most_unpacked(binary)
        unpacking = zlib.decompressobj()
        text = unpacking.decompress(binary, limit)
        if unpacking.unconsumed_tail:
            raise PlanError(
                f"PodGroup {pod_group.key}: its plan cannot be read: the plan unpacks to more than {limit} bytes"
            )
        pods = msgspec.json.decode(text, type=dict[str, PlannedPod])
    except (binascii.Error, zlib.error, ValueError, RecursionError) as error:
        raise PlanError(f"PodGroup {pod_group.key}: its plan cannot be read: {error}") from None
    return GangPlan(written.attempt, written.holder, pods, written.state)
