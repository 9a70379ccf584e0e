"""Listening sockets."""

from session_scheduler.base.sockets import bound

__all__ = ["bound"]
