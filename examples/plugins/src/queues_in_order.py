"""Queue order: queues have their turn in the order of a list, the first one as long as it wants something."""

from session_scheduler import PluginArguments, Session, hookimpl


class Arguments(PluginArguments):
    queues: tuple[str, ...] = ("urgent",)


class QueuesInOrder:
    """Queues that are not listed come last."""

    name = "queues-in-order"
    api_version = "2"
    Arguments = Arguments

    def __init__(self, arguments: Arguments) -> None:
        self.queues = arguments.queues

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        session.add_queue_order(self.key)

    def key(self, queue: str) -> int:
        return self.queues.index(queue) if queue in self.queues else len(self.queues)
