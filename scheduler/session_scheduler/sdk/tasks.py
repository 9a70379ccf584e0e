"""Tasks of a plugin's own: background work that is owned and awaited, and one list-and-watch loop."""

from session_scheduler.base.background import alongside
from session_scheduler.cluster.follow import follow

__all__ = ["alongside", "follow"]
