"""Why pods are not placed: a plugin's refusal, and the gate that keeps a pod out of the queue."""

from __future__ import annotations

from dataclasses import dataclass

from session_scheduler.model.objects import KubeObject


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a group or a class cannot be placed now. `plugin` and `failed` are filled in by the core."""

    reason: str
    plugin: str = ""
    failed: bool = False
    """Whether the plugin failed, rather than refused."""
    fits_if: tuple[str, ...] = ()
    """What would have to be so for it not to refuse, as the hook `fits_if` says it."""
    until: float | None = None
    """When that may be otherwise, in seconds since 1970; None where time alone does not change it."""


@dataclass(frozen=True, slots=True)
class Gate:
    """Answer of `pre_enqueue`: why a pod is not to be tried yet. `plugin` is filled in by the core."""

    reason: str
    awaits: tuple[type[KubeObject], str] | None = None
    """Kind and key (namespace/name, or the name) of the object that may open it by coming, changing or going."""
    plugin: str = ""
