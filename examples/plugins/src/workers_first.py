"""Sub-group order: the larger sub-groups of a gang come first."""

from session_scheduler import Session, hookimpl
from session_scheduler.model.groups import Group


class WorkersFirst:
    """Of the room that is left beside the minima, the sub-group that needs most pods has the most: the workers, say."""

    name = "workers-first"
    api_version = "2"

    def __init__(self, arguments: None) -> None:
        pass

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        session.add_sub_group_order(self.key)

    def key(self, group: Group, sub_group: str) -> int:
        return -group.minima[sub_group]
