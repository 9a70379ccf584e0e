"""Check for the packages of an optional feature; the error shows the command that installs them."""

from session_scheduler.base.extras import require

__all__ = ["require"]
