"""The PodGroupPodsCount plugin: prefers the topology domain that fits the most pods of a group."""

from __future__ import annotations

from collections.abc import Sequence

from session_scheduler.builtin.without_arguments import WithoutArguments
from session_scheduler.hookspecs import Normalise, hookimpl
from session_scheduler.model.groups import Group, Task


class PodGroupPodsCount(WithoutArguments):
    """Scores a domain by the number of the group's pods that would be on its nodes, including bound ones."""

    name = "PodGroupPodsCount"
    normalise = Normalise.MAX

    @hookimpl
    def score_placement(self, group: Group, tasks: Sequence[Task]) -> int:
        """The number of the group's pods that would have a node."""
        return sum(task.node is not None for task in group.tasks.values()) + len(tasks)
