"""Rate limits of a server's requests, by client and in total."""

from session_scheduler.base.rate_limits import RateLimit

__all__ = ["RateLimit"]
