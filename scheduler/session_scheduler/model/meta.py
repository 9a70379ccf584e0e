"""Typed metadata, conditions and selectors, which all kinds of objects share.

Source: the Kubernetes API reference (meta/v1, and core/v1 for node selectors).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Self

import msgspec
from msgspec import field

__all__ = [
    "LabelSelector", "LabelSelectorRequirement", "NodeSelector", "NodeSelectorTerm", "ObjectMeta", "OwnerReference",
    "Quantity",
]  # fmt: skip

Quantity = str | int | float
"""A resource quantity in its JSON form; `model.quantity` parses it."""
REQUIRED_TERMS: Final = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED_TERMS: Final = "preferredDuringSchedulingIgnoredDuringExecution"
"""The two lists of terms in each kind of affinity."""


class ApiStruct(msgspec.Struct, frozen=True, gc=False, kw_only=True, rename="camel", omit_defaults=True):
    """Base of all objects and their parts: the encoding uses camel-case names and omits defaults."""


class OwnerReference(ApiStruct, frozen=True):
    """metadata.ownerReferences[]."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class ObjectMeta(ApiStruct, frozen=True):
    """metadata. `creation_timestamp` and `deletion_timestamp` are RFC 3339 strings, which sort by time."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()


class Namespaced(ApiStruct, frozen=True):
    """Base of namespaced objects."""

    api_version: str = ""
    metadata: ObjectMeta = ObjectMeta()

    @property
    def key(self) -> str:
        """namespace/name."""
        return f"{self.metadata.namespace}/{self.metadata.name}"


class ClusterScoped(ApiStruct, frozen=True):
    """Base of cluster-scoped objects."""

    api_version: str = ""
    metadata: ObjectMeta = ObjectMeta()

    @property
    def key(self) -> str:
        """The name."""
        return self.metadata.name


class Condition(ApiStruct, frozen=True):
    """status.conditions[] of any kind."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None

    def since(self, before: Iterable[Condition], now: str) -> Self:
        """The condition with its lastTransitionTime: the one in `before` if its status is unchanged, else `now`."""
        known = next((one for one in before if one.type == self.type and one.status == self.status), None)
        time = known.last_transition_time if known is not None else None
        return msgspec.structs.replace(self, last_transition_time=time or now)


# ------------------------------------------------------------------ selectors


class LabelSelectorRequirement(ApiStruct, frozen=True):
    """One expression of a label or node selector; operators In, NotIn, Exists, DoesNotExist (nodes: Gt, Lt)."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class LabelSelector(ApiStruct, frozen=True):
    """matchLabels and matchExpressions, which must all hold."""

    match_labels: dict[str, str] = field(default_factory=dict)
    match_expressions: tuple[LabelSelectorRequirement, ...] = ()


class NodeSelectorTerm(ApiStruct, frozen=True):
    """Expressions on labels and on fields (metadata.name), which must all hold; an empty term matches nothing."""

    match_expressions: tuple[LabelSelectorRequirement, ...] = ()
    match_fields: tuple[LabelSelectorRequirement, ...] = ()


class NodeSelector(ApiStruct, frozen=True):
    """Terms; a node must match at least one of them."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()
