"""A session: one cycle's view of the cluster, for plugins and actions.

Plugins register callbacks on it in `on_session_open`, and read from it everywhere else. Actions use its parts: `runner`
calls callbacks, `evaluator` has the evaluations of classes and their boards, `ledger` changes the state (through
statements), `nominated` handles nominated pods, and `trials` caches the results of simulated removals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import msgspec

from session_scheduler.cluster.extender_client import MetaVictims
from session_scheduler.framework.board import Board
from session_scheduler.framework.callback_runner import CallbackRunner, first_share, notify
from session_scheduler.framework.callbacks import Callbacks, Scenario, Share
from session_scheduler.framework.evaluation import Evaluation
from session_scheduler.framework.evaluator import Evaluator
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
Narrowed = Mapping[str, MetaVictims] | str
"""By node the victims that may be evicted, or why none may be yet."""
Narrow = Callable[[Task, Mapping[str, MetaVictims], Mapping[str, Task]], Narrowed]
"""Called with a task, its victims by node, and all tasks on these nodes by uid."""


class SessionOptions(msgspec.Struct, frozen=True):
    """Options of the evaluation and the search."""

    evaluation: str = "heap"
    """naive, board or heap: three ways to the same decisions. Naive caches nothing between tasks."""
    placement_retries: int = 3
    """Maximum number of new attempts for a gang in another order."""
    search_steps: int = 2000
    """Maximum number of steps of the exhaustive search for a small gang after these attempts."""
    most_moves: int = 64
    """Maximum number of pods that are moved for one group."""
    moves_gangs: bool = False
    """Whether gangs are moved as a whole, and pods are moved for groups in one topology domain."""
    rest_seconds: float = 300.0
    """After one pod of a controller was moved, no other is moved for this long."""
    preempts: bool = True
    """Whether the scheduler may preempt pods of lower priority."""
    preempts_at_once: bool = True
    """Whether it preempts as a part of each group's attempt, and not in an action of its own."""
    reservations: int = 0
    """Maximum number of waiting gangs with reserved nodes."""


class Session(Callbacks):
    """One cycle's view of a snapshot. Plugins use what the hook manual and the reference of callbacks describe."""

    def __init__(
        self,
        snapshot: Snapshot,
        calls: HookCalls,
        options: SessionOptions = SessionOptions(),  # noqa: B008 (immutable)
        expired: Callable[[], bool] = lambda: False,
    ) -> None:
        """`expired` returns whether the time of the action is up: then it tries no further group."""
        cache, wall = snapshot.cache, snapshot.wall
        super().__init__(cache.table, calls)
        self.snapshot = snapshot
        self.options = options
        self.expired = expired
        self.view = cache.view
        """The known namespaces, services and controllers."""
        self.nominations: Nominations = cache.nominations
        """The nominated nodes of pending tasks."""
        self.queues: QueueUse = cache.queues
        """The queues and their usage, including this session's placements."""
        self.volume_use: VolumeUse = cache.volume_use
        """The volumes that the pods on each node use, including this session's placements."""
        self.now = snapshot.now
        """The session's time in seconds, from the injected clock."""
        self.wall = wall
        """The time of day when the session opened, in seconds since 1970, to compare with times of objects."""
        self.reasons_wanted = True
        """Whether reasons are reported. False in trials, which only need to know whether a task is rejected."""
        self.asked_for: Task | None = None
        """The task for which plugins are asked about victims, if it does not wait for the rest of its group."""
        self.reclaim_damage = 0
        """The largest damage that a victim of reclaim may do: see `add_reclaimable`. It is 0 at first."""
        self.next_groups: dict[str, Group] = {}
        """By queue: the group to attempt next, for the callbacks that order queues. Read only."""
        self.narrow_preemption: Narrow | None = None
        """The core's: extenders choose among the nodes where victims were found for a single task."""
        self.outcomes: dict[Group, PlacementResult] = {}
        self.cut_short = False
        """Whether an action had no time for all its groups."""
        self.not_revisited: Counter[Group] = Counter()
        """By rejected group: the number of actions that have not revisited it."""
        self.errors: list[BaseException] = []
        """Unexpected errors, each of one group: raised when everything is complete."""
        self.trials_made = 0
        """Number of simulations of removals."""
        self.held_up = 0
        """Number of plugin calls that timed out."""
        self.runner = CallbackRunner(self.registered, self.table, calls)
        self.ledger = Ledger(cache, self.runner, wall, calls.budgets)
        self.nominated = NominatedPods(cache, self.ledger, wall, naive=options.evaluation == "naive")
        self.evaluator = Evaluator(self, calls, self.nominated, options.evaluation)
        self.trials = TrialCache(self.ledger.touched, self.table.size, cache.single_pods)
        self._not_opened = {call.plugin for call in calls.functions("on_session_open")}

    # ------------------------------------------------------------------ state

    def facts(self, plugin: str) -> Any:
        """Return the plugin's answer to `facts` for this session; None without that hook."""
        return self.snapshot.facts.get(plugin)

    def objects(self, kind: type[Kube]) -> Mapping[str, Kube]:
        """Return the objects of a kind, by namespace/name, or by name if it is cluster-scoped. Read only.

        It has all watched kinds except nodes, pods, PodGroups and PriorityClasses: see `model.storage`.
        """
        return self.snapshot.cache.objects.of(kind)

    def objects_version(self, kind: type[KubeObject]) -> int:
        """Return a number that changes between sessions when an object of the kind does: for caches."""
        return self.snapshot.cache.objects.version(kind)

    def newest_seen(self, kind: type[KubeObject]) -> int:
        """Return the highest known resourceVersion of the kind: an older object that is missing was deleted."""
        return self.snapshot.cache.objects.newest(kind)

    def groups(self) -> Iterable[Group]:
        """Return the groups that were active when the session opened. The session may also retry others."""
        return self.snapshot.due

    def running(self) -> Iterable[Task]:
        """Return all tasks that are on a node, in no particular order."""
        return self.snapshot.cache.bound_tasks()

    def leaves(self, task: Task) -> bool:
        """Whether a running task was evicted for others."""
        return self.ledger.leaves(task)

    def is_ending(self, task: Task) -> bool:
        """Whether a running task is terminating, or was evicted."""
        return self.ledger.is_ending(task)

    def ends_at(self, task: Task) -> float | None:
        """Return when a task on a node ends, in seconds since 1970; None if that is not known.

        A task that is overdue or terminating may end at any moment. A task that is not known as bound yet begins now.
        """
        return self.ledger.ends_at(task)

    def node_at(self, row: int) -> str:
        """Return the name of a row's node. Raises LookupError if the row has no node."""
        return self.ledger.node_at(row)

    def yields_to(self, tasks: Sequence[Task], nodes: Iterable[str] | None = None) -> Mapping[str, Sequence[Task]]:
        """Return by node, for all or for these nodes, the nominated tasks for which a group's tasks must leave room.

        Filters count them. A plugin that places tasks by its own state must leave room for them. Usually, there are
        none.
        """
        return self.nominated.yielded_to(tasks, nodes) if self.nominations.node_by_uid else {}

    def count(self, task: Task, counts: Mapping[Hashable, int]) -> None:
        """Add amounts to counters (`nodes.counter`) of a placed task's row, in addition to its class's footprint.

        The amounts replace the task's own amounts of these keys, and 0 removes a key. Use this method for facts that
        the node decides only when a task is placed, such as the devices of the task, and call it in an `allocate`
        handler. The core then keeps the amounts like a footprint, even in simulated removals and when the node is
        deleted and added again, until the task is pending again. Use keys that no class's footprint has.
        """
        self.ledger.count(task, counts)

    # ------------------------------------------------------------------ answers of plugins

    def evaluation(self, cls: TaskClass) -> Evaluation:
        """Return the evaluation of a class. Raises PluginError."""
        return self.evaluator.evaluation(cls)

    def board(self, task: Task, subset: BoolColumn | None = None) -> Board:
        """Return the nodes that fit tasks like this one, and their scores. Raises PluginError."""
        return self.evaluator.board(task, subset)

    @property
    def orders_gpus(self) -> bool:
        """Whether any plugin scores GPUs."""
        return bool(self.registered.gpu_orders)

    def gpu_order(self, task: Task, node: str, gpus: Iterable[str]) -> list[str]:
        """Return a node's GPUs, the best for a task first, then in the order of their indices. Raises PluginError."""
        return self.runner.gpu_order(task, node, gpus)

    def reclaimable(self, group: Group, victims: Iterable[Task]) -> list[Task]:
        """Return those of the victims that callbacks allow the group's queue to reclaim. Raises PluginError."""
        return self.runner.reclaimable(group, victims)

    def reclaim_refusal(self, scenario: Scenario) -> Refusal | None:
        """Return why a scenario of reclaiming is not allowed. Raises PluginError."""
        return self.runner.reclaim_refusal(scenario)

    def queue_allocated(self, queue: str) -> Share | None:
        """Return a queue's usage; None if no plugin knows it. Raises PluginError."""
        return first_share(self.registered.queue_allocated, queue)

    def queue_deserved(self, queue: str) -> Share | None:
        """Return a queue's deserved share; None if no plugin knows it. Raises PluginError."""
        return first_share(self.registered.queue_deserved, queue)

    def queue_fair_share(self, queue: str) -> Share | None:
        """Return a queue's fair share, given the demand of all queues; None if unknown. Raises PluginError."""
        return first_share(self.registered.queue_fair_share, queue)

    @contextmanager
    def without_reasons(self) -> Iterator[None]:
        """In this context `reasons_wanted` is False."""
        wanted, self.reasons_wanted = self.reasons_wanted, False
        try:
            yield
        finally:
            self.reasons_wanted = wanted

    # ------------------------------------------------------------------ opening and closing

    def open(self) -> None:
        """Let every plugin register its callbacks. Raises PluginError, after it has closed the plugins that opened."""
        self.queues.reconcile()
        self.nominations.recount()
        for call in self.calls.functions("on_session_open"):
            self._registering = call.plugin
            try:
                call(self)
            except PluginError:
                with suppress(PluginError):  # report only the first failure
                    self.close()
                raise
            self._not_opened.discard(call.plugin)

    def close(self) -> None:
        """Notify every plugin that opened, then raise the first failure."""
        calls = [c for c in self.calls.functions("on_session_close") if c.plugin not in self._not_opened]
        notify(calls, self)

    def forget(self) -> None:
        """Drop all references back to the session at its end.

        Otherwise the columns and groups of thousands of sessions would stay in memory until a full garbage collection.
        """
        self.registered.clear()
        self.runner.forget()
        self.evaluator.forget()
