"""Metrics in the form that Prometheus reads."""

from session_scheduler.base.exposition import without_created

__all__ = ["without_created"]
