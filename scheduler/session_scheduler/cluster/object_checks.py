"""Validation of pods, nodes and pod groups, as the API server does it, before anything is scheduled.

Source: pkg/apis/core/validation and pkg/apis/scheduling/validation, for the fields that affect scheduling.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from typing import Any, Final

from session_scheduler.model.field_checks import (
    FieldError,
    at,
    check_key,
    check_labels,
    check_metadata,
    check_name,
    check_node_selector_term,
    check_quantities,
    check_value,
    is_dns_label,
    raw_label_selector,
)
from session_scheduler.model.meta import PREFERRED_TERMS, REQUIRED_TERMS
from session_scheduler.model.objects import (
    Container,
    ContainerPort,
    Node,
    NodeAffinity,
    PodGroup,
    PodSpec,
    ResourceRequirements,
    SchedulingConstraints,
    SchedulingPolicy,
    Toleration,
)
from session_scheduler.model.quantity import thousandths
from session_scheduler.model.requests import is_counted, unknown_resource

_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_PROTOCOLS = ("TCP", "UDP", "SCTP")
_HUGE_PAGES: Final = "hugepages-"


def _check_one_of(value: object, allowed: Sequence[str], where: str) -> None:
    if value not in allowed:
        raise FieldError(where, f"{value!r} is not one of {', '.join(allowed)}")


# ------------------------------------------------------------------ pods


def check_pod_spec(spec: PodSpec, where: str = "spec") -> None:
    """Raise FieldError for the first field of a pod's spec that the API server would reject."""
    if not spec.containers:
        raise FieldError(f"{where}.containers", "is empty; add at least one, for example - {name: main, image: IMAGE}")
    names: dict[str, str] = {}
    for field, containers in (("containers", spec.containers), ("initContainers", spec.init_containers)):
        for number, container in enumerate(containers):
            _check_container_name(container.name, f"{where}.{field}[{number}]", names)
            _check_container(container, f"{where}.{field}[{number}]")
    _check_resource_names(spec.overhead, f"{where}.overhead")
    check_quantities(spec.overhead, f"{where}.overhead")
    if spec.resources is not None:
        _check_resources(spec.resources, f"{where}.resources")
    check_labels(spec.node_selector, f"{where}.nodeSelector")
    for number, toleration in enumerate(spec.tolerations):
        _check_toleration(toleration, f"{where}.tolerations[{number}]")
    if spec.affinity is not None:
        _check_node_affinity(spec.affinity.node_affinity, f"{where}.affinity.nodeAffinity")
        _check_pod_affinity(spec.affinity.pod_affinity, f"{where}.affinity.podAffinity")
        _check_pod_affinity(spec.affinity.pod_anti_affinity, f"{where}.affinity.podAntiAffinity")
    for number, constraint in enumerate(spec.topology_spread_constraints):
        _check_spread(constraint, f"{where}.topologySpreadConstraints[{number}]")
    for number, gate in enumerate(spec.scheduling_gates):
        check_key(gate.name, f"{where}.schedulingGates[{number}].name")
    if spec.scheduling_group is not None:
        check_name(spec.scheduling_group.pod_group_name, f"{where}.schedulingGroup.podGroupName")


def _check_container_name(name: str, where: str, seen: dict[str, str]) -> None:
    """Check that the name is unique among containers and init containers. `seen` maps names to their positions."""
    if not name:
        raise FieldError(f"{where}.name", "is missing; name the container, for example main")
    if not is_dns_label(name):
        raise FieldError(f"{where}.name", f"{name!r} is not a valid container name; use up to 63 "
                         "lower-case letters, digits and '-'")  # fmt: skip
    if name in seen:
        raise FieldError(f"{where}.name", f"{name!r} is already the name of {seen[name]}; rename one")
    seen[name] = where


def _check_container(container: Container, where: str) -> None:
    _check_resources(container.resources, f"{where}.resources")
    for number, port in enumerate(container.ports):
        _check_port(port, f"{where}.ports[{number}]")


def _check_resources(resources: ResourceRequirements, where: str) -> None:
    for field, amounts in (("requests", resources.requests), ("limits", resources.limits)):
        _check_resource_names(amounts, f"{where}.{field}")
        check_quantities(amounts, f"{where}.{field}")
    for name, limit in resources.limits.items():
        request = resources.requests.get(name, limit)
        if thousandths(request) > thousandths(limit):
            raise FieldError(at(f"{where}.requests", name), f"{request!r} is more than the limit {limit!r}; "
                             "lower it or raise the limit")  # fmt: skip
    for name, request in resources.requests.items():
        is_native = "/" not in name or "kubernetes.io/" in name
        if is_native and not name.startswith(_HUGE_PAGES):
            continue
        if name not in resources.limits:
            raise FieldError(at(f"{where}.limits", name), f"is missing; set it to {request!r}, the request: "
                             "this resource cannot be overcommitted")  # fmt: skip
        if thousandths(request) != thousandths(resources.limits[name]):
            raise FieldError(at(f"{where}.requests", name), f"{request!r} differs from the limit "
                             f"{resources.limits[name]!r}; make them equal")  # fmt: skip


def _check_resource_names(names: Iterable[str], where: str) -> None:
    """Check that each name is known or has a domain: others, such as memmory, would have no effect."""
    for name in names:
        check_key(name, at(where, name))
        if not is_counted(name) or name.startswith("attachable-volumes-"):
            raise FieldError(at(where, name), unknown_resource(name))


def _check_port(port: ContainerPort, where: str) -> None:
    for field, number in (("containerPort", port.container_port), ("hostPort", port.host_port)):
        if not 0 <= number <= 65535:
            raise FieldError(f"{where}.{field}", f"{number} is not a valid port; use 1 to 65535")
    _check_one_of(port.protocol or "TCP", _PROTOCOLS, f"{where}.protocol")
    if port.host_ip:
        try:
            ipaddress.ip_address(port.host_ip)
        except ValueError:
            raise FieldError(f"{where}.hostIP", f"{port.host_ip!r} is not a valid IP address") from None


def _check_toleration(toleration: Toleration, where: str) -> None:
    if toleration.key:
        check_key(toleration.key, f"{where}.key")
    elif toleration.operator != "Exists":
        raise FieldError(f"{where}.operator", "must be Exists when key is empty; set the key, or tolerate all taints")
    _check_one_of(toleration.operator or "Equal", ("Equal", "Exists", "Lt", "Gt"), f"{where}.operator")
    if toleration.operator == "Exists" and toleration.value:
        raise FieldError(f"{where}.value", "must be empty when operator is Exists; remove it, or use Equal")
    check_value(toleration.value, f"{where}.value")
    if toleration.effect:
        _check_one_of(toleration.effect, _EFFECTS, f"{where}.effect")
    if toleration.toleration_seconds is not None and toleration.effect != "NoExecute":
        raise FieldError(f"{where}.effect", "must be NoExecute when tolerationSeconds is set")


def _check_weight(weight: object, where: str) -> None:
    if not isinstance(weight, int) or isinstance(weight, bool) or not 1 <= weight <= 100:
        raise FieldError(where, f"{weight!r} is not a valid weight; use 1 to 100")


def _check_node_affinity(affinity: NodeAffinity | None, where: str) -> None:
    if affinity is None:
        return
    if affinity.required is not None:
        terms = f"{where}.{REQUIRED_TERMS}.nodeSelectorTerms"
        if not affinity.required.node_selector_terms:
            raise FieldError(terms, "is empty; add at least one term")
        for number, term in enumerate(affinity.required.node_selector_terms):
            check_node_selector_term(term, f"{terms}[{number}]")
    for number, preferred in enumerate(affinity.preferred):
        field = f"{where}.{PREFERRED_TERMS}[{number}]"
        _check_weight(preferred.weight, f"{field}.weight")
        check_node_selector_term(preferred.preference, f"{field}.preference")


def _listed(value: dict[str, Any], field: str, where: str) -> list[dict[str, Any]]:
    items = value.get(field, [])
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise FieldError(f"{where}.{field}", "must be a list of mappings")
    return items


def _check_pod_affinity(affinity: dict[str, Any] | None, where: str) -> None:
    if affinity is None:
        return
    for number, term in enumerate(_listed(affinity, REQUIRED_TERMS, where)):
        _check_pod_term(term, f"{where}.{REQUIRED_TERMS}[{number}]")
    for number, preferred in enumerate(_listed(affinity, PREFERRED_TERMS, where)):
        field = f"{where}.{PREFERRED_TERMS}[{number}]"
        _check_weight(preferred.get("weight"), f"{field}.weight")
        _check_pod_term(preferred.get("podAffinityTerm"), f"{field}.podAffinityTerm")


def _check_topology_key(value: dict[str, Any], where: str) -> None:
    key = value.get("topologyKey")
    if not isinstance(key, str) or not key:
        raise FieldError(f"{where}.topologyKey", "is missing; name a node label, for example kubernetes.io/hostname")
    check_key(key, f"{where}.topologyKey")


def _check_selector_field(value: dict[str, Any], field: str, where: str) -> None:
    if field in value:
        raw_label_selector(value[field], f"{where}.{field}")


def _check_pod_term(term: Any, where: str) -> None:
    if not isinstance(term, dict):
        raise FieldError(where, "is missing; add a mapping with topologyKey and labelSelector")
    _check_topology_key(term, where)
    _check_selector_field(term, "labelSelector", where)
    _check_selector_field(term, "namespaceSelector", where)
    _check_texts(term, "namespaces", where)
    _check_texts(term, "matchLabelKeys", where)
    _check_texts(term, "mismatchLabelKeys", where)


def _check_texts(value: dict[str, Any], field: str, where: str) -> None:
    texts = value.get(field, [])
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise FieldError(f"{where}.{field}", "must be a list of strings")


def _check_spread(constraint: dict[str, Any], where: str) -> None:
    _check_topology_key(constraint, where)
    for field in ("maxSkew", "minDomains"):
        number = constraint.get(field, 1 if field == "minDomains" else None)
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise FieldError(f"{where}.{field}", f"must be a whole number of at least 1, not {number!r}")
    _check_one_of(constraint.get("whenUnsatisfiable"), ("DoNotSchedule", "ScheduleAnyway"),
                  f"{where}.whenUnsatisfiable")  # fmt: skip
    for field in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
        _check_one_of(constraint.get(field, "Honor"), ("Honor", "Ignore"), f"{where}.{field}")
    _check_selector_field(constraint, "labelSelector", where)
    _check_texts(constraint, "matchLabelKeys", where)


# ------------------------------------------------------------------ nodes and pod groups


def check_node(node: Node) -> None:
    """Raise FieldError for an invalid name, label, taint or quantity of a node."""
    check_metadata(node.metadata)
    for number, taint in enumerate(node.spec.taints):
        where = f"spec.taints[{number}]"
        check_key(taint.key, f"{where}.key")
        check_value(taint.value, f"{where}.value")
        _check_one_of(taint.effect, _EFFECTS, f"{where}.effect")
    check_quantities(node.status.allocatable, "status.allocatable")
    check_quantities(node.status.capacity, "status.capacity")


def check_pod_group(group: PodGroup) -> None:
    """Raise FieldError for a PodGroup without exactly one of gang and basic, or with a minimum count below 1."""
    check_metadata(group.metadata)
    if not group.native:
        if group.spec.min_member is not None and group.spec.min_member < 1:
            raise FieldError("spec.minMember", f"must be at least 1, not {group.spec.min_member}")
        return
    if group.spec.disruption_mode not in (None, "Pod", "PodGroup"):
        raise FieldError("spec.disruptionMode", f"{group.spec.disruption_mode!r} is not one of Pod, PodGroup")
    check_group_policy(group.spec.scheduling_policy, group.spec.scheduling_constraints, "spec")


def check_group_policy(policy: SchedulingPolicy | None, constraints: SchedulingConstraints | None, where: str) -> None:
    """Raise FieldError for an invalid policy or constraint of a group, or of a template at `where`."""
    if policy is None or (policy.gang is None) == (policy.basic is None):
        raise FieldError(f"{where}.schedulingPolicy", "must have exactly one of gang and basic; write gang: "
                         "{minCount: N} or basic: {}")  # fmt: skip
    for number, constraint in enumerate(constraints.topology if constraints is not None else ()):
        entry = f"{where}.schedulingConstraints.topology[{number}]"
        if number:
            raise FieldError(entry, "only one topology constraint is allowed; remove this one")
        check_key(constraint.key, f"{entry}.key")
    if policy.gang is not None and policy.gang.min_count < 1:
        raise FieldError(f"{where}.schedulingPolicy.gang.minCount",
                         f"must be at least 1, not {policy.gang.min_count}")  # fmt: skip
