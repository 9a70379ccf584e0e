"""Pre-allocation: groups that need a licence wait while none is free."""

from session_scheduler import Event, PluginArguments, Session, hookimpl
from session_scheduler.model.groups import Group, Phase, Task


class Arguments(PluginArguments):
    label: str = "licence"
    licences: int = 1


class Licences:
    """Counts the pods with the label. Each pod uses one licence."""

    name = "licences"
    api_version = "2"
    Arguments = Arguments

    def __init__(self, arguments: Arguments) -> None:
        self.arguments = arguments
        self.used = 0

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        tasks = session.snapshot.cache.tasks.values()
        self.used = sum(self.needs(task) for task in tasks if task.node is not None)
        session.add_event_handler(allocate=self.placed, deallocate=self.taken)
        session.add_pre_allocation(self.check)

    def needs(self, task: Task) -> int:
        return int(self.arguments.label in task.pod.metadata.labels)

    def placed(self, event: Event) -> None:
        self.used += self.needs(event.task)

    def taken(self, event: Event) -> None:
        self.used -= self.needs(event.task)

    def check(self, group: Group) -> str | None:
        wanted = sum(map(self.needs, group.in_phase(Phase.PENDING)))
        free = self.arguments.licences - self.used
        return f"{wanted} licences needed, {free} free" if wanted > free else None
