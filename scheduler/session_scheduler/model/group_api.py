"""The API of pod groups: one table a version, by which all that the core knows of a group is read and written.

The core's own form is `PodGroup`, in the words of scheduling.k8s.io/v1alpha2. What another version says differently is
translated where it is read, and back where it is written, so nothing else knows that there are versions: support for a
further one is a further `GroupVersion` in `GROUP_VERSIONS`.
Source: k8s.io/api scheduling/v1alpha2 (Kubernetes 1.36) and scheduling/v1beta1 (1.37), scheduler-plugins for
scheduling.x-k8s.io/v1alpha1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from session_scheduler.model.meta import ObjectMeta
from session_scheduler.model.objects import PodGroup, PodGroupSpec, PodGroupStatus

__all__ = ["COSCHEDULING", "V1ALPHA2"]

SCHEDULED: Final = "PodGroupScheduled"
"""The core's name of the condition that says whether a group is scheduled."""
PLURAL: Final = "podgroups"


class WirePodGroup(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag_field="kind", tag="PodGroup"):
    """A PodGroup as a version says it, its spec and status not looked at yet."""

    api_version: str = ""
    metadata: ObjectMeta = ObjectMeta()
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Translation:
    """A field of the spec that a version says differently than the core."""

    name: str
    """What the core calls it, as the wire's names are written."""
    read: Callable[[Any], Any]
    write: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Gate:
    """A feature gate of the API server without which it drops a field of PodGroups, and says nothing."""

    name: str
    field: str
    """Of the spec, as the version calls it."""
    sample: Any
    """A value that the field takes: with the gate on, a group that exists cannot be given it."""
    without: str
    """What is not done without it."""


@dataclass(frozen=True, slots=True)
class GroupVersion:
    """One version of an API of pod groups."""

    api_version: str
    condition: str | None = SCHEDULED
    """What it calls the condition SCHEDULED; None where its groups have no conditions."""
    spec: Mapping[str, Translation] = field(default_factory=dict)
    """By its own name, what it says differently."""
    gates: tuple[Gate, ...] = ()
    needs: str = ""
    """What makes an API server serve it."""

    @property
    def plain(self) -> bool:
        """Whether its objects are in the core's form as they are."""
        return not self.spec and self.condition in (None, SCHEDULED)

    def read(self, wire: WirePodGroup) -> PodGroup:
        """The group in the core's form. Raises msgspec.ValidationError where it is none."""
        spec = dict(self._read_field(name, value) for name, value in wire.spec.items())
        status = dict(wire.status)
        if status.get("conditions"):
            status["conditions"] = [self._read_condition(one) for one in status["conditions"]]
        return PodGroup(
            api_version=self.api_version,
            metadata=wire.metadata,
            spec=msgspec.convert(spec, PodGroupSpec),
            status=msgspec.convert(status, PodGroupStatus),
        )

    def _read_field(self, name: str, value: Any) -> tuple[str, Any]:
        translation = self.spec.get(name)
        return (name, value) if translation is None else (translation.name, translation.read(value))

    def _read_condition(self, condition: Any) -> Any:
        named = isinstance(condition, dict) and condition.get("type") == self.condition
        return {**condition, "type": SCHEDULED} if named else condition

    def written(self, group: PodGroup) -> dict[str, Any]:
        """The group as this version says it, without its status."""
        body: dict[str, Any] = msgspec.to_builtins(group)
        names = {translation.name: (name, translation) for name, translation in self.spec.items()}
        spec = {}
        for name, value in body.get("spec", {}).items():
            own, translation = names.get(name, (name, None))
            spec[own] = value if translation is None else translation.write(value)
        return {**body, "apiVersion": self.api_version, "spec": spec, "status": {}}

    def condition_type(self, type_: str) -> str:
        """What it calls a type of condition."""
        return self.condition if type_ == SCHEDULED and self.condition is not None else type_


# ------------------------------------------------------------------ what versions say differently


def _read_mode(mode: Any) -> str | None:
    """v1beta1 has an object of which one member is set: `single`, or `all`."""
    if not isinstance(mode, dict):
        return None
    return "PodGroup" if mode.get("all") is not None else "Pod"


def _read_template(reference: Any) -> Any:
    names = reference if isinstance(reference, dict) else {}
    said = {"workloadName": names.get("workloadName", ""), "podGroupTemplateName": names.get("templateName", "")}
    return {"workload": said}


def _write_template(reference: Any) -> Any:
    named = reference.get("workload") or {}
    return {"workloadName": named.get("workloadName", ""), "templateName": named.get("podGroupTemplateName", "")}


_TOPOLOGY = Gate(
    "TopologyAwareWorkloadScheduling",
    "schedulingConstraints",
    {"topology": [{"key": "kubernetes.io/hostname"}]},
    "groups are placed without topology constraints",
)
_CLAIMS = Gate(
    "DRAWorkloadResourceClaims",
    "resourceClaims",
    [{"name": "claim", "resourceClaimName": "claim"}],
    "groups share no resource claims",
)
V1ALPHA2: Final = GroupVersion(
    "scheduling.k8s.io/v1alpha2",
    gates=(
        _TOPOLOGY,
        Gate(  # not by disruptionMode, which has a default that the API server fills in whatever the gate says
            "WorkloadAwarePreemption",
            "priorityClassName",
            "system-cluster-critical",
            "groups have no priority, and no disruption mode",
        ),
        _CLAIMS,
    ),
    needs="--runtime-config=scheduling.k8s.io/v1alpha2=true and the feature gate GenericWorkload",
)
"""Kubernetes' own PodGroup, in the version whose fields the scheduler uses for every version."""
V1BETA1: Final = GroupVersion(
    "scheduling.k8s.io/v1beta1",
    condition="PodGroupInitiallyScheduled",
    spec={
        "disruptionMode": Translation(
            "disruptionMode", _read_mode, lambda mode: {"all" if mode == "PodGroup" else "single": {}}
        ),
        "workloadRef": Translation("podGroupTemplateRef", _read_template, _write_template),
    },
    gates=(_TOPOLOGY, _CLAIMS),
    needs="--runtime-config=scheduling.k8s.io/v1beta1=true and the feature gate GenericWorkload",
)
COSCHEDULING: Final = GroupVersion(
    "scheduling.x-k8s.io/v1alpha1", condition=None, needs="the coscheduling plugin's CustomResourceDefinition"
)
"""The PodGroup of the coscheduling plugin."""

GROUP_VERSIONS: Final = (V1BETA1, V1ALPHA2, COSCHEDULING)
"""Of each API group the newest first: of those that an API server has, that one is used."""


def version_of(api_version: str) -> GroupVersion | None:
    """The table of an apiVersion; None for one that is not known."""
    return next((version for version in GROUP_VERSIONS if version.api_version == api_version), None)
