"""Pauses between tries that fail."""

from session_scheduler.base.backoff import Backoff, backoff

__all__ = ["Backoff", "backoff"]
