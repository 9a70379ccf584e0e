"""Protect a plugin's state from the interruption after `hook_seconds`. Public, for plugin authors."""

from session_scheduler.framework.watchdog import begin_update as begin_update

__all__ = ["begin_update"]
