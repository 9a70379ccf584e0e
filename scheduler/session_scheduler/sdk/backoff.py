"""Exponential backoff."""

from session_scheduler.base.backoff import Backoff, backoff

__all__ = ["Backoff", "backoff"]
