"""Job order: groups of few pods come first."""

from session_scheduler import Session, hookimpl
from session_scheduler.model.groups import Group


class SmallFirst:
    """Orders a queue's groups by the number of their pods."""

    name = "small-first"
    api_version = "2"

    def __init__(self, arguments: None) -> None:
        pass

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        session.add_job_order(self.key)

    def key(self, group: Group) -> int:
        return len(group.tasks)
