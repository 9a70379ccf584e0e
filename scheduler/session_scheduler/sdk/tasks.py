"""Background tasks of plugins, and a list-and-watch loop."""

from session_scheduler.base.background import alongside
from session_scheduler.cluster.follow import follow

__all__ = ["alongside", "follow"]
