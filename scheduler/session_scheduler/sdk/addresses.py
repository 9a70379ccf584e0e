"""Network addresses as text."""

from session_scheduler.base.addresses import host_and_port

__all__ = ["host_and_port"]
