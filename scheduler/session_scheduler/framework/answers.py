"""Types for the answers of hooks; `Refusal` is in `model.refusals`. `hookspecs` exports all of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, Protocol, TypeVar

import msgspec

from session_scheduler.errors import FluenceError
from session_scheduler.framework.row_results import RowResults
from session_scheduler.model.columns import BoolColumn, RowIndex
from session_scheduler.model.groups import Group, Task
from session_scheduler.model.units import Unit

_T = TypeVar("_T")


class Scope(Enum):
    """What a filter's or a score's result depends on."""

    STATIC = "static"
    """Only on the node and the class."""
    NODE = "node"
    """Also on the pods on that node: requests and counters of its row."""
    ANY = "any"
    """On anything: the scheduler asks again after every change."""


class Normalise(Enum):
    """How raw scores are normalised to 0 to 100; m is the maximum over the feasible nodes."""

    NONE = "none"
    """Raw scores are already 0 to 100."""
    MAX = "max"
    """100·raw÷m, or 0 if m is 0 (kube-scheduler's DefaultNormalizeScore). Raw scores are 0 or more."""
    MAX_REVERSED = "max-reversed"
    """100 − 100·raw÷m, or 100 if m is 0. Raw scores are 0 or more."""
    SPREAD = "spread"
    """100·(raw − min)÷(m − min), or 0 if they are equal."""


class Skip(Enum):
    """The type of SKIP."""

    SKIP = "skip"


SKIP: Final = Skip.SKIP
"""Return value of `prepare`: the class needs none of this plugin's filters and scores."""


class Prepared(msgspec.Struct, frozen=True):
    """Return value of `prepare`: a state for the class, and the scopes of the filter and the score for this class.

    A scope may be narrower than the one that the plugin declares. SKIP means that the class does not need that hook.
    """

    state: Any
    filter_scope: Scope | Skip = Scope.ANY
    score_scope: Scope | Skip = Scope.ANY
    required_free: Mapping[str, int] | None = None
    """A promise: the filter passes exactly the nodes where at least these amounts are free, by resource. Trials of
    removing pods then compare amounts instead of calling it.
    """
    claims_key: Callable[[], Hashable | None] | None = None
    """For a plugin that reads the pod's ResourceClaims: it returns what the plugin's answers about nodes now depend on
    instead of the claims' names, or None if they depend on these claims only. A promise: pods that differ only in their
    claims, and have equal keys, get equal answers. The scheduler then evaluates them once.
    """
    counts_nominated: bool = False
    """Whether the filter also counts nominated pods, on whatever nodes (`session.nominated.kinds_ahead`). If there are
    any for which a task must leave room, the scheduler calls it with and without them.
    """


class Preemption(msgspec.Struct, frozen=True, eq=False):
    """Return value of `postfilter`: the running tasks to evict, and the nodes of the tasks that then fit."""

    nominated: Mapping[Task, str]
    """The node of each task to place after the evictions. The scheduler retries the rest of the group with them."""
    victims: tuple[Task, ...]
    where: str
    """The node's name, or another description of the place for reports."""
    moves: Mapping[Task, str] = msgspec.field(default_factory=dict)
    """The victims that are moved rather than preempted, each with the node that was found for it."""


class Reservation(msgspec.Struct, frozen=True, eq=False):
    """Return value of `reservation`: nodes on which the tasks of a gang can start together, and the earliest time."""

    nominated: Mapping[Task, str]
    """The node of each task that starts then."""
    start: float
    """In seconds since 1970; not before `session.wall`."""


class NoPreemption(msgspec.Struct, frozen=True):
    """Return value of `postfilter`: preemption does not help, and the reason in kube-scheduler's words."""

    reason: str
    keep: bool = False
    """Whether the tasks stay nominated, for example because their victims are still terminating."""


class Placement(Protocol):
    """Resources that a plugin has reserved for some tasks of a group.

    They are reserved from the moment that the plugin returns the placement. `undo` frees all of them and leaves no
    trace; `redo` reserves exactly the same again; `release` frees the share of some tasks for good. The scheduler
    never calls one of them twice in a row.
    """

    @property
    def nodes(self) -> Mapping[Task, str]:
        """The node of each task for which resources are still reserved."""

    @property
    def holds(self) -> Mapping[Task, Mapping[str, Any]]:
        """The resources of each task as JSON values, for the plan and the Binding. Use names, never ranks or ids."""

    def undo(self) -> None:
        """Free all resources; the plugin's state is as it was before `place_group`."""

    def redo(self) -> None:
        """Reserve the same resources again after `undo`: all of them or, if it raises, none."""

    def release(self, tasks: Sequence[Task]) -> None:
        """Free the resources of these tasks; the others keep theirs."""


class Trial(Protocol):
    """Argument of `postfilter` and `reservation`: tasks that fit on no node, and a simulation of removing running pods.

    After the hook the core restores everything.
    """

    group: Group
    """The group of the tasks."""
    tasks: tuple[Task, ...]
    """The tasks to place."""
    alone: bool
    """Whether it is a single task that a node rejected, and that does not need the rest of its group."""
    priority: int
    """The priority of the PodGroup, else the highest priority of the tasks."""
    by_node: bool
    """Whether filters evaluate each node by that node alone: then several nodes can be evaluated together."""
    beyond_nodes: bool
    """Whether a plugin that places groups evaluates a node also by what it has elsewhere: then terminating pods on
    other nodes may still be in the way.
    """
    reason: str
    """Why `place` failed, or why a plugin that places groups rejects a node; may be empty."""

    @property
    def nodes(self) -> list[str]:
        """All nodes, in the order of the tie-break."""

    @property
    def node_count(self) -> int:
        """The number of nodes."""

    def helpable(self) -> list[str]:
        """Return the nodes that reject the (first) task but might fit it without some of their pods.

        They have the order of `nodes`. If each node is evaluated alone, they include nodes that only the plugin that
        places groups rejects. Empty if the task is rejected whatever the node.
        """

    @property
    def outranks_any(self) -> bool:
        """Whether any running task has a lower priority than the tasks: if not, there are no victims."""

    def is_helpable(self, node: str) -> bool:
        """Whether `helpable` has a node."""

    def candidates(self, turn: int) -> tuple[RowIndex, int]:
        """Return the rows (in the session's table) of the nodes of `helpable` where a running task has a lower priority
        than the tasks, and is in a queue with victims; and the number of all nodes of `helpable`. The order is that of
        `helpable`, and begins after `turn` nodes.
        """

    def node_at(self, row: int) -> str:
        """Return the name of a row's node."""

    def running(self, node: str) -> list[Task]:
        """Return the tasks on a node that may be evicted. It omits tasks whose binding, or whose gang's binding, is in
        flight, and tasks that callbacks protect. Raises PluginError.
        """

    def units(self, nodes: Iterable[str]) -> list[Unit]:
        """Return the tasks of `running` on these nodes that have a lower priority, in units that are evicted together.
        Raises PluginError.
        """

    def others_end_on(self, node: str) -> bool:
        """Whether a node has terminating victims of lower priority, or victims that the tasks' queue may reclaim."""

    def objection(self, nominated: Mapping[Task, str], victims: Sequence[Task]) -> str | None:
        """Return why callbacks do not allow this preemption; None if they allow it. Raises PluginError."""

    def damages(self, units: Sequence[Sequence[Task]]) -> list[int | None] | None:
        """Return the damage of each unit of victims (the first to evict first) in addition to the others.

        A unit without damage has 0; one that must not be evicted has None. None for all if no callback chooses among
        victims. Raises PluginError.
        """

    @property
    def awaits_binds(self) -> bool:
        """Whether `running` omitted tasks of lower priority, which may become victims once they are bound."""

    @property
    def more_room_helps(self) -> bool:
        """Whether removing more pods can never make a placement fail, because all filters evaluate one row alone."""

    def is_ending(self, task: Task) -> bool:
        """Whether a running task is terminating, or was evicted."""

    def nominated(self, task: Task) -> str | None:
        """Return the node that a task is nominated for."""

    def alike(self, victims: Sequence[Task]) -> Hashable | None:
        """Return what decides `objection` to these victims, whatever the node; None if callbacks promise nothing."""

    def results(self, width: int, now: Hashable = None) -> RowResults | None:
        """Return the results of tasks like this one with the same `now`, with `width` numbers for each row; None if the
        core keeps none. Put results there only for rows for which `shares` returns True, and only results that depend
        on nothing but the node's own pods and `now`.
        """

    def shares(self, rows: RowIndex) -> BoolColumn:
        """Whether each of these rows has the same result for all tasks like this one. Call it after `running`."""

    def recall(self, nodes: Sequence[str], now: Hashable = None) -> dict[str, Any]:
        """Return by node the values that `keep` stored for tasks like this one with the same `now`. A node without a
        value, or with an outdated one, has None.
        """

    def keep(self, node: str, found: object, now: Hashable = None) -> None:
        """Store a value for the next task like this one. It must depend only on the node's own pods and on `now`."""

    def remove(self, tasks: Iterable[Task]) -> None:
        """Simulate removing running tasks. Raises PluginError."""

    def put_back(self, tasks: Iterable[Task]) -> None:
        """Undo the removal of tasks: of all of them, even if plugins object. Raises PluginError."""

    def attempt(self, find: Callable[[], _T]) -> _T | FluenceError:
        """Return the result of `find`. If a plugin fails in it, undo its removals and return the error.

        Raises PluginError if a plugin fails to undo them: the plugin's later answers would be wrong.
        """

    def fits(self, node: str) -> bool:
        """Whether the single task fits on a node now. Raises PluginError."""

    def fit_each(self, nodes: Sequence[str]) -> list[bool]:
        """For each of these nodes, whether the filters accept the single task now; with `by_node` also the plugin that
        places groups. Raises PluginError.
        """

    def reprieve(self, units: Mapping[str, Sequence[Sequence[Task]]]) -> Mapping[str, list[int] | None]:
        """Return for each of these nodes the places of the units that must stay removed so that the single task fits.
        All units of the node are removed, then put back one by one, in order, while the task fits. None if removing all
        is not enough. Everything is in place afterwards. Use it only with `by_node`. Raises PluginError.
        """

    def why_each(self, nodes: Sequence[str]) -> list[list[str]]:
        """Return why the single task does not fit on each of these nodes now. Raises PluginError."""

    def place(self, *, thorough: bool = False) -> Mapping[Task, str] | None:
        """Return nodes for all tasks that must start together; None if they do not fit. Raises PluginError.

        `reason` then has the reason. With `thorough` a small gang is searched for exhaustively, as in its own attempt;
        that may be slow.
        """

    def is_placeable(self, *, thorough: bool = False) -> bool:
        """Whether `place` would find nodes. If tasks of one class fit on each node by what is on that node alone, the
        free amounts answer that without a placement. Raises PluginError.
        """

    def summary(self, reasons: Mapping[str, int] | Iterable[Iterable[str]]) -> str:
        """Return kube-scheduler's sentence: for the number of nodes by text, or for the texts of each node."""
