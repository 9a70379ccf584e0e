"""Task order: of a group's pods the leader is placed first."""

from session_scheduler import Session, hookimpl
from session_scheduler.model.groups import Task


class LeaderFirst:
    """Pods with the label `role: leader` come before the others of their group."""

    name = "leader-first"
    api_version = "2"

    def __init__(self, arguments: None) -> None:
        pass

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        session.add_task_order(self.key)

    def key(self, task: Task) -> bool:
        return task.pod.metadata.labels.get("role") != "leader"
