"""Validation of fields that many kinds share: names, labels, selectors, quantities. Source: apimachinery's validation.

Each check raises FieldError, which names the field. The reader of manifests adds the file and the object, as
ManifestError.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from session_scheduler.model.objects import (
    LabelSelector,
    LabelSelectorRequirement,
    NodeSelectorTerm,
    ObjectMeta,
    Quantity,
)
from session_scheduler.model.quantity import QuantityError, thousandths
from session_scheduler.model.times import parsed_time
from session_scheduler.model.type_errors import explain_type_error

ANNOTATIONS_LIMIT = 262_144
"""The maximum number of bytes that the keys and values of all annotations of an object may have in total."""

_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_DNS_LABEL = re.compile(_LABEL)
_DNS_SUBDOMAIN = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_QUALIFIED_PART = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_MOST_KNOWN: Final = 4096
"""How many texts each check remembers: most names and label values of a large cluster are different."""
_LABEL_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")
_NODE_OPERATORS = (*_LABEL_OPERATORS, "Gt", "Lt")


class FieldError(ValueError):
    """A field has an invalid value. `field` is its path, `problem` the error and a remedy."""

    def __init__(self, field: str, problem: str) -> None:
        self.field = field
        self.problem = problem
        super().__init__(f"{field}: {problem}")


# ------------------------------------------------------------------ names and labels


@lru_cache(maxsize=_MOST_KNOWN)
def is_dns_label(text: str) -> bool:
    """Whether the text is an RFC 1123 label, as for names of namespaces."""
    return _DNS_LABEL.fullmatch(text) is not None


@lru_cache(maxsize=_MOST_KNOWN)
def is_dns_subdomain(text: str) -> bool:
    """Whether the text is an RFC 1123 subdomain, as for names of most objects."""
    return len(text) <= 253 and _DNS_SUBDOMAIN.fullmatch(text) is not None


@lru_cache(maxsize=_MOST_KNOWN)
def is_qualified_name(text: str) -> bool:
    """Whether the text is a valid label or annotation key: an optional DNS prefix and `/`, then up to 63 characters."""
    prefix, slash, name = text.rpartition("/")
    if slash and not is_dns_subdomain(prefix):
        return False
    return _QUALIFIED_PART.fullmatch(name) is not None


@lru_cache(maxsize=_MOST_KNOWN)
def is_label_value(text: str) -> bool:
    """Whether the text is a valid label value: empty, or up to 63 characters."""
    return not text or _QUALIFIED_PART.fullmatch(text) is not None


def at(where: str, key: str) -> str:
    """The path of a mapping's entry: `where.key`, or `where[key]` if the key contains dots or slashes."""
    return f"{where}[{key}]" if "." in key or "/" in key else f"{where}.{key}"


def check_name(text: str, where: str) -> None:
    """Raises FieldError unless the text is a valid object name."""
    if not is_dns_subdomain(text):
        raise FieldError(where, f"{text!r} is not a valid name; use up to 253 lower-case letters, digits, '-' and '.'")


def check_key(key: str, where: str) -> None:
    """Raises FieldError unless the text is a valid key of a label, annotation, taint or selector."""
    if not is_qualified_name(key):
        raise FieldError(where, f"{key!r} is not a valid key; write name or prefix/name, with a name of up to 63 "
                         "letters, digits, '-', '_' and '.'")  # fmt: skip


def check_value(value: str, where: str) -> None:
    """Raises FieldError unless the text is a valid label value."""
    if not is_label_value(value):
        raise FieldError(where, f"{value!r} is not a valid label value; use up to 63 letters, digits, '-', '_' and '.'")


def check_labels(labels: Mapping[str, str], where: str) -> None:
    """Raises FieldError for the first invalid label key or value."""
    for key, value in labels.items():
        check_key(key, at(where, key))
        check_value(value, at(where, key))


def check_annotations(annotations: Mapping[str, str], where: str) -> None:
    """Raises FieldError for the first invalid key, or if the annotations are too large in total."""
    for key in annotations:
        if not is_qualified_name(key.lower()):  # unlike a label's prefix, an annotation's may contain uppercase letters
            check_key(key, at(where, key))
    size = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
    if size > ANNOTATIONS_LIMIT:
        raise FieldError(where, f"have {size} bytes in total, more than {ANNOTATIONS_LIMIT}; shorten them")


def check_metadata(metadata: ObjectMeta, where: str = "metadata") -> None:
    """Raises FieldError for an invalid name, namespace, label, annotation or time."""
    if metadata.name:
        check_name(metadata.name, f"{where}.name")
    if metadata.namespace and not is_dns_label(metadata.namespace):
        raise FieldError(f"{where}.namespace", f"{metadata.namespace!r} is not a valid namespace; use up to 63 "
                         "lower-case letters, digits and '-'")  # fmt: skip
    check_labels(metadata.labels, f"{where}.labels")
    check_annotations(metadata.annotations, f"{where}.annotations")
    check_time(metadata.creation_timestamp, f"{where}.creationTimestamp")
    check_time(metadata.deletion_timestamp, f"{where}.deletionTimestamp")


# ------------------------------------------------------------------ times


def check_time(text: str | None, where: str) -> None:
    """Raises FieldError unless the text is a valid RFC 3339 time, or absent."""
    if text is not None and parsed_time(text) is None:
        raise FieldError(where, f"{text!r} is not a valid time; write it in RFC 3339, such as 2026-01-31T12:00:00Z")


# ------------------------------------------------------------------ selectors


def _check_requirement(requirement: LabelSelectorRequirement, operators: Iterable[str], where: str) -> None:
    check_key(requirement.key, f"{where}.key")
    operator, values = requirement.operator, requirement.values
    if operator not in operators:
        raise FieldError(f"{where}.operator", f"{operator!r} is not a valid operator; use {', '.join(operators)}")
    if operator in ("In", "NotIn") and not values:
        raise FieldError(f"{where}.values", f"is empty: {operator} needs at least one value")
    if operator in ("Exists", "DoesNotExist") and values:
        raise FieldError(f"{where}.values", f"{operator} takes no values; remove them")
    if operator in ("Gt", "Lt"):
        if len(values) != 1 or re.fullmatch(r"[+-]?\d{1,19}", values[0]) is None:
            raise FieldError(f"{where}.values", f'{operator} takes one integer, such as ["8"], not {list(values)}')
        return
    for number, value in enumerate(values):
        check_value(value, f"{where}.values[{number}]")


def check_label_selector(selector: LabelSelector, where: str) -> None:
    """Raises FieldError for an invalid key, value or operator of a label selector."""
    check_labels(selector.match_labels, f"{where}.matchLabels")
    for number, requirement in enumerate(selector.match_expressions):
        _check_requirement(requirement, _LABEL_OPERATORS, f"{where}.matchExpressions[{number}]")


def raw_label_selector(raw: Any, where: str) -> LabelSelector:
    """The label selector decoded from plain values, and validated. Raises FieldError."""
    try:
        selector = msgspec.convert(raw, LabelSelector)
    except msgspec.ValidationError as error:
        field, problem = explain_type_error(str(error), raw)
        raise FieldError(f"{where}.{field}".rstrip("."), problem) from None
    check_label_selector(selector, where)
    return selector


def selects(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    """Whether a label selector matches these labels; an empty one matches all."""
    return all(labels.get(key) == value for key, value in selector.match_labels.items()) and all(
        requirement_holds(requirement, labels) for requirement in selector.match_expressions
    )


def requirement_holds(requirement: LabelSelectorRequirement, labels: Mapping[str, str]) -> bool:
    """Whether the labels satisfy one validated expression of a label or node selector."""
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value in requirement.values
        case "NotIn":
            return value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    if value is None or re.fullmatch(r"[+-]?\d{1,19}", value) is None:
        return False
    bound = int(requirement.values[0])
    return int(value) > bound if requirement.operator == "Gt" else int(value) < bound


def check_node_selector_term(term: NodeSelectorTerm, where: str) -> None:
    """Raises FieldError for an invalid expression in a node selector term. The only valid field is metadata.name."""
    for number, requirement in enumerate(term.match_expressions):
        _check_requirement(requirement, _NODE_OPERATORS, f"{where}.matchExpressions[{number}]")
    for number, requirement in enumerate(term.match_fields):
        field = f"{where}.matchFields[{number}]"
        if requirement.key != "metadata.name":
            raise FieldError(f"{field}.key", f"{requirement.key!r} is not a valid field; use metadata.name")
        if requirement.operator not in ("In", "NotIn") or len(requirement.values) != 1:
            raise FieldError(field, "needs the operator In or NotIn, and exactly one value")


# ------------------------------------------------------------------ quantities


@lru_cache(maxsize=_MOST_KNOWN)
def _quantity_problem(name: str, quantity: Quantity) -> str | None:
    try:
        amount = thousandths(quantity)
    except QuantityError as error:
        return str(error)
    if amount < 0:
        return f"{quantity!r} is negative; write 0 or more"
    if "/" in name and not name.startswith("kubernetes.io/") and amount % 1000:
        return f"{quantity!r} is not an integer: extended resources come in whole units"
    return None


def check_quantities(quantities: Mapping[str, Quantity], where: str) -> None:
    """Raises FieldError for the first quantity that is invalid or negative, or not an integer where it must be one."""
    for name, quantity in quantities.items():
        problem = _quantity_problem(name, quantity)
        if problem is not None:
            raise FieldError(at(where, name), problem)
