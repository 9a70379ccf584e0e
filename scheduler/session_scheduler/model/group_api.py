"""API versions of PodGroups: one table per version, which converts between its objects and the core's form.

The core's form is `PodGroup`, with the fields of scheduling.k8s.io/v1alpha2. The cluster client converts objects when
it reads and writes them, so no other module depends on the version. To support another version, add a `GroupVersion`
to `GROUP_VERSIONS`.
Source: k8s.io/api scheduling/v1alpha2 (Kubernetes 1.36) and scheduling/v1beta1 (1.37), scheduler-plugins for
scheduling.x-k8s.io/v1alpha1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from session_scheduler.model.meta import ObjectMeta
from session_scheduler.model.objects import PodGroup, PodGroupSpec, PodGroupStatus

__all__ = ["COSCHEDULING", "V1ALPHA2"]

SCHEDULED: Final = "PodGroupScheduled"
"""The type of the condition that reports whether a group is scheduled, in the core's form."""
PLURAL: Final = "podgroups"


class WirePodGroup(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag_field="kind", tag="PodGroup"):
    """A PodGroup of any version; its spec and status are not decoded yet."""

    api_version: str = ""
    metadata: ObjectMeta = ObjectMeta()
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}


class Translation(msgspec.Struct, frozen=True):
    """A field of the spec that differs between a version and the core's form."""

    name: str
    """Its name in the core's form, in camel case."""
    read: Callable[[Any], Any]
    write: Callable[[Any], Any]


class Gate(msgspec.Struct, frozen=True):
    """A feature gate of the API server. While it is off, the API server silently drops a field of PodGroups."""

    name: str
    field: str
    """The field of the spec, by the version's name."""
    sample: Any
    """A valid value of the field. While the gate is on, the API server rejects setting it on an existing group."""
    without: str
    """The effect of the disabled gate, for the log."""


class GroupVersion(msgspec.Struct, frozen=True):
    """One version of an API of PodGroups."""

    api_version: str
    condition: str | None = SCHEDULED
    """Its type of the condition SCHEDULED; None if its groups have no conditions."""
    spec: Mapping[str, Translation] = msgspec.field(default_factory=dict)
    """By the version's name: the fields that differ from the core's form."""
    gates: tuple[Gate, ...] = ()
    needs: str = ""
    """What enables it in an API server."""

    @property
    def plain(self) -> bool:
        """Whether the version's objects already have the core's form."""
        return not self.spec and self.condition in (None, SCHEDULED)

    def read(self, wire: WirePodGroup) -> PodGroup:
        """The group in the core's form. Raises msgspec.ValidationError if it is invalid."""
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
        """The group in this version's form, without status."""
        body: dict[str, Any] = msgspec.to_builtins(group)
        names = {translation.name: (name, translation) for name, translation in self.spec.items()}
        spec = {}
        for name, value in body.get("spec", {}).items():
            own, translation = names.get(name, (name, None))
            spec[own] = value if translation is None else translation.write(value)
        return {**body, "apiVersion": self.api_version, "spec": spec, "status": {}}

    def condition_type(self, type_: str) -> str:
        """The version's name of a condition type."""
        return self.condition if type_ == SCHEDULED and self.condition is not None else type_


# ------------------------------------------------------------------ differences between versions


def _read_mode(mode: Any) -> str | None:
    """disruptionMode of v1beta1: an object with either `single` or `all` set."""
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
        Gate(  # not disruptionMode: the API server defaults it even while the gate is off
            "WorkloadAwarePreemption",
            "priorityClassName",
            "system-cluster-critical",
            "groups have no priority and no disruption mode",
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
"""The newest version of each API group first: the scheduler uses the first one that the API server serves."""


def version_of(api_version: str) -> GroupVersion | None:
    """The table of an apiVersion; None if it is unknown."""
    return next((version for version in GROUP_VERSIONS if version.api_version == api_version), None)
