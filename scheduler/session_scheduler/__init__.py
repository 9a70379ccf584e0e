"""The session core: holds a consistent view of the cluster, asks the plugins, commits or undoes.

Public names for plugin authors are re-exported here; everything else is an inner module and may change.
"""

from session_scheduler.hookspecs import API_VERSION, SKIP, Normalise, Refusal, Scope, hookimpl

__all__ = ["API_VERSION", "SKIP", "Normalise", "Refusal", "Scope", "hookimpl"]
