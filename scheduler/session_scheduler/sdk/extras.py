"""Packages that one feature alone needs: one line with the command that installs them, where they are missing."""

from session_scheduler.base.extras import require

__all__ = ["require"]
