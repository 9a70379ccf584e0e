"""Reclaimable: some queues give nothing back, however far they are beyond their share."""

from session_scheduler import PluginArguments, Session, hookimpl
from session_scheduler.model.groups import Group


class Arguments(PluginArguments):
    queues: frozenset[str] = frozenset({"production"})


class QueuesKept:
    """Spares the pods of the queues that are listed where another queue takes its share back."""

    name = "queues-kept"
    api_version = "2"
    Arguments = Arguments

    def __init__(self, arguments: Arguments) -> None:
        self.queues = arguments.queues

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        session.add_reclaimable(self.may_end)

    def may_end(self, group: Group, victim: Group) -> bool:
        return victim.queue not in self.queues
