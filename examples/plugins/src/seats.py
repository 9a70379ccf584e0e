"""Trial handler: a plugin with a count of its own follows simulated removals, and leaves room for nominated pods."""

from collections import Counter

from session_scheduler import Event, NodeInfo, PluginArguments, Session, hookimpl
from session_scheduler.model.groups import Group, Task


class Arguments(PluginArguments):
    seats: int = 1


class Seats:
    """Each node has so many seats, and each pod takes one."""

    name = "seats"
    api_version = "2"
    Arguments = Arguments

    def __init__(self, arguments: Arguments) -> None:
        self.seats = arguments.seats
        self.taken: Counter[str] = Counter()

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        self.session = session
        running = session.snapshot.cache.tasks.values()
        self.taken = Counter(task.node for task in running if task.node is not None)
        session.add_event_handler(allocate=self.sit, deallocate=self.rise)
        session.add_trial_handler(remove=self.rise, put_back=self.sit)
        session.add_predicate(self.fits)

    def sit(self, event: Event) -> None:
        self.taken[event.node] += 1

    def rise(self, event: Event) -> None:
        self.taken[event.node] -= 1

    def fits(self, task: Task, group: Group, node: NodeInfo) -> str | None:
        nominated = self.session.yields_to((task,), (node.name,)).get(node.name, ())
        return None if self.taken[node.name] + len(nominated) < self.seats else "node(s) had no free seat"
