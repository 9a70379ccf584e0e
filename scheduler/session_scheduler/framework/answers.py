"""What hooks answer, beside a `Refusal`; `hookspecs` has them all."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Protocol, TypeVar

from session_scheduler.errors import FluenceError
from session_scheduler.model.groups import Group, Task

_T = TypeVar("_T")


class Scope(Enum):
    """What an answer depends on."""

    STATIC = "static"
    """Nodes and class only."""
    NODE = "node"
    """Also on what runs on that same node: requests and counters of the row."""
    ANY = "any"
    """Anything else: asked again after every change."""


class Normalise(Enum):
    """How raw scores become 0 to 100; m is the maximum over the feasible nodes."""

    NONE = "none"
    """Raw scores are 0 to 100 already."""
    MAX = "max"
    """100·raw÷m, 0 where m is 0 (kube-scheduler's DefaultNormalizeScore)."""
    MAX_REVERSED = "max-reversed"
    """100 − 100·raw÷m, 100 where m is 0."""
    SPREAD = "spread"
    """100·(raw − min)÷(m − min), 0 where they are equal."""


class Skip(Enum):
    """The type of SKIP."""

    SKIP = "skip"


SKIP: Final = Skip.SKIP
"""Answer of `prepare`: none of this plugin's filters and scores are needed for the class."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Answer of `prepare` with more than a state: what the filter's and the score's answers depend on for this class.

    A scope may be narrower than the one that the plugin declares; SKIP: that hook is not needed.
    """

    state: Any
    filter_scope: Scope | Skip = Scope.ANY
    score_scope: Scope | Skip = Scope.ANY


@dataclass(frozen=True, slots=True, eq=False)
class Preemption:
    """Answer of `postfilter`: which running tasks are to end, and where the tasks are to go once they have."""

    nominated: Mapping[Task, str]
    """The node of each task that is to be placed; the others of its group are retried with it."""
    victims: tuple[Task, ...]
    where: str
    """The node's name, or what else is reported of where that happens."""
    moves: Mapping[Task, str] = field(default_factory=dict)
    """The victims that are to run elsewhere, each with the node found for it: they are moved rather than preempted."""


@dataclass(frozen=True, slots=True, eq=False)
class Reservation:
    """Answer of `reservation`: where the tasks of a gang are to start together, and when they can at the earliest."""

    nominated: Mapping[Task, str]
    """The node of each task that is to start then."""
    start: float
    """In seconds since 1970; not before `session.wall`."""


@dataclass(frozen=True, slots=True)
class NoPreemption:
    """Answer of `postfilter`: nothing can be done for the tasks, and why, in kube-scheduler's words."""

    reason: str
    keep: bool = False
    """Whether the tasks stay nominated where they are: their victims are still ending, say."""


class Placement(Protocol):
    """Resources that a plugin has taken for some of a group's tasks.

    It holds them from the moment it is returned. `undo` gives all of it back and leaves no trace; `redo` takes exactly
    the same again; `release` gives some tasks' share back for good. Each is called at most once in a row.
    """

    @property
    def nodes(self) -> Mapping[Task, str]:
        """The node of each task that the placement (still) holds."""

    @property
    def holds(self) -> Mapping[Task, Mapping[str, Any]]:
        """What each task holds, as JSON values: written to the plan and to the Binding. Names, never ranks or ids."""

    def undo(self) -> None:
        """Give everything back; the plugin's state is as it was before `place_group`."""

    def redo(self) -> None:
        """Take the same resources again, after `undo`: all of them, or, where it raises, none."""

    def release(self, tasks: Sequence[Task]) -> None:
        """Give back what these tasks hold; the others keep theirs."""


class Trial(Protocol):
    """Tasks of one group that no node fits, and a simulation of removing running pods: `postfilter`, `reservation`.

    Afterwards all is as it was.
    """

    group: Group
    """The group that waits."""
    tasks: tuple[Task, ...]
    """Its tasks that are to be placed."""
    alone: bool
    """Whether it is one task that stands for itself, and that a node refused: its place is on one node."""
    priority: int
    """That of the tasks' PodGroup, else the highest of theirs."""
    by_node: bool
    """Whether each node's answer depends on that node alone: then several can be looked at together."""
    beyond_nodes: bool
    """Whether a node's answer depends on what else a plugin that places groups has: pods that end already may be
    in the way.
    """
    reason: str
    """Why `place` could not, or why a plugin that places groups refuses a node; may be empty."""

    @property
    def nodes(self) -> list[str]:
        """All nodes, in the order of the tie-break between equal ones."""

    @property
    def node_count(self) -> int:
        """How many nodes there are."""

    def helpable(self) -> list[str]:
        """The nodes that refuse the (first) task, and might not if pods there ended; in the order of `nodes`.

        Where it is asked node by node what the plugin that places groups would do, these are among them, too, that it
        refuses and filters do not. None where the task is refused whatever the node.
        """

    def running(self, node: str) -> list[Task]:
        """The tasks on a node that could end; not those whose binding, or their gang's, is in flight, nor those that
        callbacks spare. Raises PluginError.
        """

    def others_end_on(self, node: str) -> bool:
        """Whether tasks on a node were made to end that these outrank, or that may end for their queue's share."""

    def objection(self, nominated: Mapping[Task, str], victims: Sequence[Task]) -> str | None:
        """Why callbacks do not let these victims end so that tasks go there; None where they do. Raises PluginError."""

    @property
    def awaits_binds(self) -> bool:
        """Whether `running` left out tasks of lower priority: there may be more victims once they are bound."""

    @property
    def more_room_helps(self) -> bool:
        """Whether the tasks that can be placed can be so, too, when more is gone: no filter looks beyond its row."""

    def is_ending(self, task: Task) -> bool:
        """Whether a running task was asked to end, by anything."""

    def nominated(self, task: Task) -> str | None:
        """The node that a task is nominated for."""

    def recall(self, nodes: Sequence[str], now: Hashable = None) -> dict[str, Any]:
        """What was kept of nodes for tasks like this one, when `now` was the same; None for one of which that is
        nothing, or holds no more.
        """

    def keep(self, node: str, found: object, now: Hashable = None) -> None:
        """Keep something that the node's own pods decide, and `now`, for the next task like this one."""

    def remove(self, tasks: Iterable[Task]) -> None:
        """Simulate removing running tasks. Raises PluginError."""

    def put_back(self, tasks: Iterable[Task]) -> None:
        """Put back tasks whose removal is simulated: all of them, whatever plugins say. Raises PluginError."""

    def attempt(self, find: Callable[[], _T]) -> _T | FluenceError:
        """What `find` finds; where a plugin fails meanwhile its error, and what was removed since is put back.

        Raises PluginError where a plugin did not follow what was put back: what it says is of no use any more.
        """

    def fits(self, node: str) -> bool:
        """Whether the one task could go to a node now. Raises PluginError."""

    def fit_each(self, nodes: Sequence[str]) -> list[bool]:
        """Whether the filters let the one task go to each of these nodes now, and with `by_node` the plugin that places
        groups, too. Raises PluginError.
        """

    def why_each(self, nodes: Sequence[str]) -> list[list[str]]:
        """Why the one task cannot go to each of these nodes now. Raises PluginError."""

    def place(self, *, thorough: bool = False) -> Mapping[Task, str] | None:
        """Where the tasks would go now, all that must start together; None where that is nowhere. Raises PluginError.

        `reason` says why not. With `thorough` a small gang is searched for, too, as where it is to start: that may take
        long.
        """

    def is_placeable(self, *, thorough: bool = False) -> bool:
        """Whether `place` would find places. For tasks of one class that fit a node by what is on it alone, the nodes'
        room says so, and nothing is placed. Raises PluginError.
        """

    def summary(self, reasons: Iterable[Iterable[str]]) -> str:
        """What some nodes say, one entry a node, in kube-scheduler's words."""
