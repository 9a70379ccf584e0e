"""A client for objects of any kind, as JSON or decoded to your types."""

from session_scheduler.cluster.dynamic_client import (
    APPLY_PATCH,
    JSON_PATCH,
    MERGE_PATCH,
    STRATEGIC_MERGE_PATCH,
    KubeApi,
    connect,
)
from session_scheduler.cluster.errors import (
    AlreadyExists,
    ClusterError,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    TooManyRequests,
    Unavailable,
    Unreadable,
)

__all__ = [
    "APPLY_PATCH", "JSON_PATCH", "MERGE_PATCH", "STRATEGIC_MERGE_PATCH", "AlreadyExists", "ClusterError", "Conflict",
    "Forbidden", "Invalid", "KubeApi", "NotFound", "TooManyRequests", "Unavailable", "Unreadable", "connect",
]  # fmt: skip
