"""Refusals, with which plugins reject nodes, classes and groups, and gates, which keep pods out of the queue."""

from __future__ import annotations

import msgspec

from session_scheduler.model.objects import KubeObject


class Refusal(msgspec.Struct, frozen=True):
    """Why a plugin rejects a node, a class or a group. The core fills in `plugin` and `failed`."""

    reason: str
    plugin: str = ""
    failed: bool = False
    """Whether the plugin failed with an error, instead of a rejection."""
    fits_if: tuple[str, ...] = ()
    """The conditions under which the plugin would not reject it, as the hook `fits_if` returns them."""
    until: float | None = None
    """When the rejection may end, in seconds since 1970; None if time alone does not end it."""


class Gate(msgspec.Struct, frozen=True):
    """Return value of `pre_enqueue`: why a pod must not enter the scheduling queue yet. The core fills in `plugin`."""

    reason: str
    awaits: tuple[type[KubeObject], str] | None = None
    """Kind and key (namespace/name, or name) of the object whose creation, change or deletion may open the gate."""
    plugin: str = ""
