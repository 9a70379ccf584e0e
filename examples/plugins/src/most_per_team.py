"""Over capacity: limits a team's pods. A pod beyond the limit preempts no pod of another team."""

from collections import Counter
from collections.abc import Sequence

from session_scheduler import Event, PluginArguments, Session, hookimpl
from session_scheduler.model.groups import Group, Task


class Arguments(PluginArguments):
    label: str = "team"
    most: int = 1


class MostPerTeam:
    """Counts pods by a label's value; those without it are not counted."""

    name = "most-per-team"
    api_version = "2"
    Arguments = Arguments

    def __init__(self, arguments: Arguments) -> None:
        self.arguments = arguments
        self.pods: Counter[str] = Counter()

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        running = session.snapshot.cache.tasks.values()
        self.pods = Counter(self.team(task) for task in running if task.node is not None)
        session.add_event_handler(allocate=lambda event: self.count(event, 1), deallocate=lambda e: self.count(e, -1))
        session.add_over_capacity(self.check)

    def team(self, task: Task) -> str:
        return task.pod.metadata.labels.get(self.arguments.label, "")

    def count(self, event: Event, by: int) -> None:
        self.pods[self.team(event.task)] += by

    def check(self, group: Group, tasks: Sequence[Task]) -> list[str | None]:
        has = Counter(self.pods)
        return [self.refusal(self.team(task), has) for task in tasks]

    def refusal(self, team: str, has: Counter[str]) -> str | None:
        """Those that are let in count for those after them."""
        if team and has[team] >= self.arguments.most:
            return f"team {team} already has {has[team]} pods, and may have at most {self.arguments.most}"
        has[team] += 1
        return None
