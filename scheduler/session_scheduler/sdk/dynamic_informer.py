"""Lists and watches of objects of any kind."""

from session_scheduler.cluster.dynamic_informer import Change, Follower, Resource

__all__ = ["Change", "Follower", "Resource"]
