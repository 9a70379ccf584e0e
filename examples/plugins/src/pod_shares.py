"""Queue shares: what queues have and deserve, for other plugins to ask."""

from collections import Counter
from collections.abc import Mapping

from session_scheduler import Event, PluginArguments, Session, hookimpl


class Arguments(PluginArguments):
    pods: dict[str, int] = {}  # noqa: RUF012 (a pydantic model copies its defaults)


class PodShares:
    """Shares are counted in pods: as many as the configuration says, for each queue alike whoever else wants some."""

    name = "pod-shares"
    api_version = "2"
    Arguments = Arguments

    def __init__(self, arguments: Arguments) -> None:
        self.deserved = arguments.pods
        self.allocated: Counter[str] = Counter()

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        running = session.snapshot.cache.tasks.values()
        self.allocated = Counter(task.group.queue for task in running if task.node is not None)
        session.add_event_handler(allocate=lambda event: self.count(event, 1), deallocate=lambda e: self.count(e, -1))
        session.add_queue_allocated(lambda queue: {"pods": self.allocated[queue]})
        session.add_queue_deserved(self.share)
        session.add_queue_fair_share(self.share)

    def share(self, queue: str) -> Mapping[str, int] | None:
        return {"pods": self.deserved[queue]} if queue in self.deserved else None

    def count(self, event: Event, by: int) -> None:
        self.allocated[event.task.group.queue] += by
