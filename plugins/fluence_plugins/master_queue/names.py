"""Validates names, label keys and label values as Kubernetes does. Source: apimachinery's util/validation."""

from __future__ import annotations

import re
from typing import Final

_LABEL: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_PART: Final = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_SUBJECT: Final = re.compile(r"[^\s.*>]+(?:\.[^\s.*>]+)*")
_LONGEST: Final = 253


def is_dns_label(text: str) -> bool:
    """Whether the text is an RFC 1123 label."""
    return _LABEL.fullmatch(text) is not None


def is_dns_subdomain(text: str) -> bool:
    """Whether the text is an RFC 1123 subdomain, as most objects' names are."""
    return len(text) <= _LONGEST and _SUBDOMAIN.fullmatch(text) is not None


def is_label_key(text: str) -> bool:
    """Whether the text is a valid key of a label or taint: a name, with an optional domain and slash before it."""
    domain, slash, name = text.rpartition("/")
    return _PART.fullmatch(name) is not None and (is_dns_subdomain(domain) if slash else True)


def is_label_value(text: str) -> bool:
    """Whether the text is a valid value of a label or taint; it may be empty."""
    return not text or _PART.fullmatch(text) is not None


def is_subject(text: str) -> bool:
    """Whether the text is a NATS subject without wildcards."""
    return len(text) <= _LONGEST and _SUBJECT.fullmatch(text) is not None
