"""What a session did for a group, and why not more."""

from __future__ import annotations

from dataclasses import dataclass, field

from session_scheduler.model.groups import Group, Task
from session_scheduler.model.refusals import Refusal


@dataclass(slots=True)
class Outcome:
    """What a session did for a group: the tasks placed now, and why the others were not."""

    group: Group
    placed: list[Task] = field(default_factory=list)
    reasons: dict[Task, str] = field(default_factory=dict)
    refusal: Refusal | None = None
    """What refused the group as a whole."""
    tried: list[Task] = field(default_factory=list)
    """The tasks for which nodes were looked for."""
    barred: list[Task] = field(default_factory=list)
    """Those that a plugin's `prepare` refused, whatever the node."""
    over_capacity: list[Task] = field(default_factory=list)
    """Those that may not have what they request, wherever it is."""
    over_capacity_together: list[Task] = field(default_factory=list)
    """The tasks of a gang that could be placed, where too few of them may have what they request."""
    nominated: dict[Task, str] = field(default_factory=dict)
    """The node for which each of these is nominated from now on; empty where for none any more."""
    nominated_before: dict[Task, str] = field(default_factory=dict)
    """The node for which each of these was nominated until now; empty for none."""
    preempts: bool = False
    """Whether it was asked whose end would make room."""
    filled_in: bool = False
    """Whether it uses what is kept for a gang that starts later."""
    placed_in_part: bool = False
    """Whether the group starts without some of the tasks: they are tried again on their own."""

    @property
    def scheduled(self) -> bool:
        """Whether nothing of the group was refused."""
        return self.refusal is None and not self.reasons

    @property
    def refused(self) -> bool:
        """Whether nothing was placed, and no error is the reason."""
        failed = self.refusal is not None and self.refusal.failed
        return not self.scheduled and not self.placed and not failed
