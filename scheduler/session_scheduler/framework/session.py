"""A session: one cycle's view of the cluster, as plugins see it, over the parts with which the actions work.

Plugins register callbacks on it in `on_session_open` and read through it everywhere else. Actions use its parts:
`runner` asks callbacks, `evaluator` evaluates classes and keeps their boards, `ledger` changes what is where (through
statements), `nominated` says what tasks leave room for, and `trials` keeps what simulated removals found out.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from session_scheduler.framework.board import Board, Evaluator
from session_scheduler.framework.callback_runner import CallbackRunner, first_share, notify
from session_scheduler.framework.callbacks import Callbacks, Scenario, Share
from session_scheduler.framework.evaluation import Evaluation
from session_scheduler.framework.hooks import HookCalls, PluginError
from session_scheduler.framework.nominated_pods import NominatedPods
from session_scheduler.framework.statement import Ledger, PlacementResult
from session_scheduler.framework.trial_cache import TrialCache
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import BoolColumn
from session_scheduler.model.groups import Group, Task
from session_scheduler.model.objects import KubeObject
from session_scheduler.model.refusals import Refusal
from session_scheduler.state.nominations import Nominations
from session_scheduler.state.queue_use import QueueUse
from session_scheduler.state.snapshot import Snapshot
from session_scheduler.state.volume_use import VolumeUse

Kube = TypeVar("Kube", bound=KubeObject)


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How a session evaluates and how hard it tries."""

    evaluation: str = "heap"
    """naive, board or heap: three ways to the same decisions. Naive remembers nothing of one task for the next."""
    placement_retries: int = 3
    """Whole new starts of a gang in another order."""
    search_steps: int = 2000
    """Steps of the exhaustive search that ends the tries for a small gang."""
    most_moves: int = 64
    """How many pods are moved at most for one group."""
    rest_seconds: float = 300.0
    """How long the pods of a controller are left alone after one of them was moved."""
    preempts: bool = True
    """Whether pods of lower priority may be preempted."""
    preempts_at_once: bool = True
    """Whether that is a part of each group's try, and not an action of its own."""
    reservations: int = 0
    """For how many gangs that wait nodes are kept at a time."""


class Session(Callbacks):
    """Opened over a snapshot. What is named in the hook manual and the reference of callbacks is for plugins."""

    def __init__(
        self,
        snapshot: Snapshot,
        calls: HookCalls,
        options: SessionOptions = SessionOptions(),
        expired: Callable[[], bool] = lambda: False,
    ) -> None:
        """`expired` tells whether the cycle's time is over, so that no further group is started."""
        cache, wall = snapshot.cache, snapshot.wall
        super().__init__(cache.table, calls)
        self.snapshot = snapshot
        self.options = options
        self.expired = expired
        self.view = cache.view
        """What is known of namespaces, services and controllers."""
        self.nominations: Nominations = cache.nominations
        """Which pending tasks are to go where."""
        self.queues: QueueUse = cache.queues
        """The queues, and what each has, this session's placements included."""
        self.volume_use: VolumeUse = cache.volume_use
        """Which volumes the pods on each node use, this session's placements included."""
        self.now = snapshot.now
        """The time of the session in seconds, from the injected clock."""
        self.wall = wall
        """The time of day at which the session opened, in seconds since 1970, as objects' times count them."""
        self.reasons_wanted = True
        """Whether anything reports why something is refused: not where a trial only asks whether it is."""
        self.asked_for: Task | None = None
        """The task for which plugins are asked which pods may end, where it does not wait for the rest of its group."""
        self.outcomes: dict[Group, PlacementResult] = {}
        self.errors: list[BaseException] = []
        """Unexpected errors, each of one group: to be raised when everything is complete."""
        self.trials_made = 0
        """How often removals were simulated to see whether others would fit."""
        self.held_up = 0
        """How often a plugin was waited for in vain."""
        self.runner = CallbackRunner(self.registered, self.table, calls)
        self.ledger = Ledger(cache, self.runner, wall, calls.budgets)
        self.nominated = NominatedPods(cache, self.ledger, wall)
        self.evaluator = Evaluator(self, calls, self.nominated, options.evaluation)
        self.trials = TrialCache(self.ledger.touched)
        self._not_opened = {call.plugin for call in calls.functions("on_session_open")}

    # ------------------------------------------------------------------ what there is

    def facts(self, plugin: str) -> Any:
        """What the plugin's `facts` answered when the session opened; None without."""
        return self.snapshot.facts.get(plugin)

    def objects(self, kind: type[Kube]) -> Mapping[str, Kube]:
        """The objects of a kind, by namespace/name, or by name where it has no namespace; to be read only.

        All kinds that are watched beside nodes, pods, PodGroups and PriorityClasses: see `model.storage`.
        """
        return self.snapshot.cache.objects.of(kind)

    def objects_version(self, kind: type[KubeObject]) -> int:
        """Moves between sessions whenever an object of the kind comes, goes or changes: for what is computed once."""
        return self.snapshot.cache.objects.version(kind)

    def newest_seen(self, kind: type[KubeObject]) -> int:
        """The highest resourceVersion of the kind that was seen: an older object that is not there is gone."""
        return self.snapshot.cache.objects.newest(kind)

    def groups(self) -> Iterable[Group]:
        """The groups that are due."""
        return self.snapshot.due

    def running(self) -> Iterable[Task]:
        """All tasks that are on a node, in no particular order."""
        return self.snapshot.cache.bound_tasks()

    def leaves(self, task: Task) -> bool:
        """Whether a running task was made to end for others."""
        return self.ledger.leaves(task)

    def is_ending(self, task: Task) -> bool:
        """Whether a running task was asked to end, by anything."""
        return self.ledger.is_ending(task)

    def ends_at(self, task: Task) -> float | None:
        """When a task on a node ends, in seconds since 1970; None where that is not known.

        What is late, or was asked to end, may end at any moment. What is not heard of as bound yet begins now.
        """
        return self.ledger.ends_at(task)

    def node_at(self, row: int) -> str:
        """The name of a row's node. Raises LookupError where it holds none."""
        return self.ledger.node_at(row)

    def yields_to(self, tasks: Sequence[Task], nodes: Iterable[str] | None = None) -> Mapping[str, Sequence[Task]]:
        """By node, of all or of these: the nominated tasks on none yet that tasks of one group must leave room for.

        Filters count them. A plugin that places by a state of its own leaves them room in it; mostly it is nothing.
        """
        return self.nominated.yielded_to(tasks, nodes) if self.nominations.node_by_uid else {}

    def count(self, task: Task, counts: Mapping[Hashable, int]) -> None:
        """Let a task on a node add this to counters of its row (`nodes.counter`), beside its class's footprint and in
        place of what it alone added to these keys before; 0 is nothing.

        For what the node decides only when a task is there, as which of its devices the task has: an `allocate` handler
        counts it. From then on the core keeps it like a footprint, also where the task's removal is simulated, it is
        back again, or its node goes and comes; it ends when the task is to be placed again. Keys that no class's
        footprint has.
        """
        self.ledger.count(task, counts)

    # ------------------------------------------------------------------ what plugins answer

    def evaluation(self, cls: TaskClass) -> Evaluation:
        """What is left to ask for a class. Raises PluginError."""
        return self.evaluator.evaluation(cls)

    def board(self, task: Task, subset: BoolColumn | None = None) -> Board:
        """Where tasks like this one fit, and what each node is worth to them. Raises PluginError."""
        return self.evaluator.board(task, subset)

    @property
    def orders_gpus(self) -> bool:
        """Whether any plugin has an opinion of GPUs."""
        return bool(self.registered.gpu_orders)

    def gpu_order(self, task: Task, node: str, gpus: Iterable[str]) -> list[str]:
        """A node's GPUs, the best for a task first, else in the order of their indices. Raises PluginError."""
        return self.runner.gpu_order(task, node, gpus)

    def reclaimable(self, group: Group, victims: Iterable[Task]) -> list[Task]:
        """Those of some running tasks that may end so that a group's queue gets its share. Raises PluginError."""
        return self.runner.reclaimable(group, victims)

    def reclaim_refusal(self, scenario: Scenario) -> Refusal | None:
        """Why a whole scenario of reclaiming a queue's share must not be done. Raises PluginError."""
        return self.runner.reclaim_refusal(scenario)

    def queue_allocated(self, queue: str) -> Share | None:
        """What a queue uses; None where no plugin knows. Raises PluginError."""
        return first_share(self.registered.queue_allocated, queue)

    def queue_deserved(self, queue: str) -> Share | None:
        """What a queue is to have whenever it wants it; None where no plugin knows. Raises PluginError."""
        return first_share(self.registered.queue_deserved, queue)

    def queue_fair_share(self, queue: str) -> Share | None:
        """What a queue is to have beside what others want now; None where no plugin knows. Raises PluginError."""
        return first_share(self.registered.queue_fair_share, queue)

    @contextmanager
    def without_reasons(self) -> Iterator[None]:
        """While it lasts, `reasons_wanted` is False."""
        wanted, self.reasons_wanted = self.reasons_wanted, False
        try:
            yield
        finally:
            self.reasons_wanted = wanted

    # ------------------------------------------------------------------ opening and closing

    def open(self) -> None:
        """Let every plugin register its callbacks. Raises PluginError; then those that opened were closed again."""
        self.queues.reconcile()
        self.nominations.recount()
        for call in self.calls.functions("on_session_open"):
            self._registering = call.plugin
            try:
                call(self)
            except PluginError:
                with suppress(PluginError):  # the first failure is the one that is reported
                    self.close()
                raise
            self._not_opened.discard(call.plugin)

    def close(self) -> None:
        """Notify every plugin that opened; the first failure is raised then."""
        calls = [c for c in self.calls.functions("on_session_close") if c.plugin not in self._not_opened]
        notify(calls, self)

    def forget(self) -> None:
        """Let go of what refers back to the session, once nothing asks it any more.

        Else columns and groups of thousands of sessions would stay until the garbage collector looks for old cycles.
        """
        self.registered.clear()
        self.evaluator.forget()
