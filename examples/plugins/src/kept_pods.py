"""Preemptible: pods with a label are never preempted, whatever their priority."""

from session_scheduler import PluginArguments, Session, hookimpl
from session_scheduler.model.groups import Group


class Arguments(PluginArguments):
    label: str = "keep"


class KeptPods:
    """Protects groups with a labelled pod from preemption."""

    name = "kept-pods"
    api_version = "2"
    Arguments = Arguments

    def __init__(self, arguments: Arguments) -> None:
        self.label = arguments.label

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        session.add_preemptable(self.may_end)

    def may_end(self, group: Group, victim: Group) -> bool:
        return not any(self.label in task.pod.metadata.labels for task in victim.tasks.values())
