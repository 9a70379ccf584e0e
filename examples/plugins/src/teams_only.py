"""Pre-predicate: a pod must say which team it belongs to before any node is looked at."""

from session_scheduler import PluginArguments, Session, hookimpl
from session_scheduler.model.groups import Group, Task


class Arguments(PluginArguments):
    label: str = "team"


class TeamsOnly:
    """Refuses pods without the label."""

    name = "teams-only"
    api_version = "2"
    Arguments = Arguments

    def __init__(self, arguments: Arguments) -> None:
        self.label = arguments.label

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        session.add_pre_predicate(self.check)

    def check(self, task: Task, group: Group) -> str | None:
        return None if self.label in task.pod.metadata.labels else f"it has no label {self.label!r}"
