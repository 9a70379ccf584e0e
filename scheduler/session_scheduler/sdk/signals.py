"""SIGTERM and SIGINT, and waits that end with them."""

from session_scheduler.base.signals import background, first_of, stop_on_signals

__all__ = ["background", "first_of", "stop_on_signals"]
