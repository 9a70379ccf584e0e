"""The topology domain that takes more of a group's pods is the better one for it."""

from __future__ import annotations

from collections.abc import Sequence

from session_scheduler.builtin.without_arguments import WithoutArguments
from session_scheduler.hookspecs import Normalise, hookimpl
from session_scheduler.model.groups import Group, Task


class PodGroupPodsCount(WithoutArguments):
    """Scores a domain by how many pods of the group would be on nodes, those that are already included."""

    name = "PodGroupPodsCount"
    normalise = Normalise.MAX

    @hookimpl
    def score_placement(self, group: Group, tasks: Sequence[Task]) -> int:
        """How many of the group's pods have a node then."""
        return sum(task.node is not None for task in group.tasks.values()) + len(tasks)
