"""Signal handling, and waits that a signal ends."""

from session_scheduler.base.signals import background, first_of, stop_on_signals

__all__ = ["background", "first_of", "stop_on_signals"]
