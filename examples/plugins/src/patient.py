"""Can reclaim: patient groups wait, and preempt no pod to reclaim their queue's share."""

from session_scheduler import PluginArguments, Session, hookimpl
from session_scheduler.model.groups import Group


class Arguments(PluginArguments):
    label: str = "patient"


class Patient:
    """A group is patient if one of its pods has the label."""

    name = "patient"
    api_version = "2"
    Arguments = Arguments

    def __init__(self, arguments: Arguments) -> None:
        self.label = arguments.label

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        session.add_can_reclaim(self.check)

    def check(self, group: Group) -> str | None:
        if any(self.label in task.pod.metadata.labels for task in group.tasks.values()):
            return "it waits for free resources, and does not preempt other pods"
        return None
