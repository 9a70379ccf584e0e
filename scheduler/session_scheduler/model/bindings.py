"""What plugins are told around a binding: before it, when its share is free again, and at a restart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from session_scheduler.model.groups import Task
from session_scheduler.model.objects import Pod


@dataclass(slots=True)
class Binding:
    """One task about to be bound. Annotations that `prebind` hooks add are written together with the node's name."""

    task: Task
    node: str
    holds: Mapping[str, Any]
    """What this plugin's placement holds for the task; empty where it holds nothing."""
    annotations: dict[str, str] = field(default_factory=dict)

    @property
    def pod(self) -> Pod:
        """The pod to be bound."""
        return self.task.pod


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a task held and holds no more: its pod, by uid, and the node that it was on or was meant for."""

    uid: str
    pod: Pod
    node: str


@dataclass(frozen=True, slots=True)
class Holding:
    """What a live bound pod says that it holds: `held` is the asked plugin's part, None where it has none."""

    task: Task
    node: str
    held: Any
    annotations: Mapping[str, str]


class Runtime:
    """What a plugin's own tasks may do to the scheduler."""

    def __init__(self, wake: Callable[[str, str], None], elected: Callable[[], bool]) -> None:
        self._wake = wake
        self._elected = elected

    def wake(self, group: str, why: str) -> None:
        """Make a group (its key) due."""
        self._wake(group, why)

    @property
    def elected(self) -> bool:
        """Whether this replica leads."""
        return self._elected()
