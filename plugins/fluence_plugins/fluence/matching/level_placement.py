"""The placement of a group with a topology constraint: vertex by vertex, with one match per class among its hosts.

A match among the hosts of one vertex visits these only, so it is faster than a match that also searches the vertex. All
classes and devices of a group are matched in one vertex before the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import numpy as np

from fluence_plugins.fluence.graph.topology import HostLevels, in_words
from fluence_plugins.fluence.matching.group_placement import GroupPlacement
from fluxion_cy.wording import plural
from session_scheduler import Refusal
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import BoolColumn, IntColumn
from session_scheduler.model.groups import Task

Columns = Mapping[TaskClass, IntColumn]
Place = Callable[[Sequence[Task], Columns, Columns], GroupPlacement | Refusal]
"""Places all tasks with this room and these scores, or returns a refusal."""


class Matcher(Protocol):
    """Places tasks, and ignores levels."""

    @property
    def place(self) -> Place:
        """Place all tasks, or return a refusal."""

    @property
    def explain(self) -> Place:
        """`place`, with a refusal that says what is short."""


_PROBES = 64
"""How many placements it tries to find how many pods of a group fit."""


class LevelVertices(msgspec.Struct, frozen=True, eq=False):
    """The vertices of a type; for several types, those of the innermost one."""

    kinds: tuple[str, ...]
    vertices: tuple[HostLevels, ...]
    """In natural order."""
    of_row: IntColumn
    """By row of the session: the number of the vertex that contains the host, -1 for none."""

    def __str__(self) -> str:
        return self.kinds[-1]

    def name(self, number: int) -> str:
        """The words for a vertex."""
        return in_words(self.vertices[number])


class Within(msgspec.Struct, frozen=True):
    """All pods in one vertex of a level.

    `number`: the vertex with placed pods of the group. `each`: the core passes the room of one vertex at a time.
    """

    level: LevelVertices
    number: int | None = None
    each: bool = False


class Spread(msgspec.Struct, frozen=True):
    """Pods spread over several vertices of a level. `there`: how many placed pods of the group each vertex has."""

    level: LevelVertices
    over: int | None
    there: IntColumn


@dataclass(slots=True)
class LevelPlacer:
    """Places tasks of one group."""

    matcher: Matcher
    within: Within | None = None
    spread: Spread | None = None
    budget: int = 1
    reasons_wanted: bool = True
    _probes: int = field(default=_PROBES, init=False)

    def place(self, tasks: Sequence[Task], room: Columns, scores: Columns) -> GroupPlacement | Refusal:
        """Place all tasks, or return a refusal."""
        within = self.within
        if within is None:
            return self._inside(tasks, room, scores, explained=self.reasons_wanted)
        level, number = within.level, within.number
        if not level.vertices:
            return Refusal(f"no node has the label of level {level}")
        able = vertices_that_fit(tasks, room, scores, level, len(tasks))
        for vertex in able if number is None else [v for v in able if v == number]:
            found = self._inside(tasks, _only(room, level.of_row == vertex), scores)
            if isinstance(found, GroupPlacement):
                return found
        return Refusal(self._why_not(within, tasks, room, scores) if self.reasons_wanted else "")

    def _inside(
        self, tasks: Sequence[Task], room: Columns, scores: Columns, *, explained: bool = False
    ) -> GroupPlacement | Refusal:
        if self.spread is not None:
            return self._over(self.spread, tasks, room, scores, explained=explained)
        return (self.matcher.explain if explained else self.matcher.place)(tasks, room, scores)

    def _why_not(self, within: Within, tasks: Sequence[Task], room: Columns, scores: Columns) -> str:
        """Name the vertex that fits the most tasks, and what is short in it."""
        level, number, count = within.level, within.number, _pods(len(tasks))
        where = self._with_most(within, tasks, room, scores)
        if number is not None:
            text, there = f"{level.name(number)}, where other pods of the group are, has no room for {count}", "; "
        elif within.each and where >= 0:
            text, there = f"{level.name(where)} has no room for {count}", "; "
        else:
            text, there = f"no {level} has room for {count}", f"; in {level.name(where)}, "
        if where < 0:
            return text
        found = self._inside(tasks, _only(room, level.of_row == where), scores, explained=True)
        if isinstance(found, GroupPlacement):
            found.undo()
            return text
        return f"{text}{there}{found.reason}"

    def _with_most(self, within: Within, tasks: Sequence[Task], room: Columns, scores: Columns) -> int:
        """The vertex that fits the most tasks; -1 if none fits one."""
        level, capacity = within.level, _capacity(tasks, room, within.level)
        vertices = range(len(level.vertices)) if within.number is None else [within.number]
        most, where = -1, -1
        for vertex in sorted(vertices, key=lambda v: (-int(capacity[v]), v)):
            if capacity[vertex] > max(most, 0):
                here = _only(room, level.of_row == vertex)
                fits = self._most(tasks, int(capacity[vertex]), here, scores, self._inside)
                most, where = (fits, vertex) if fits > most else (most, where)
        return where

    def _most(self, tasks: Sequence[Task], bound: int, room: Columns, scores: Columns, place: Place) -> int:
        """How many of the first tasks fit, at most `bound`. It undoes its placements."""
        low, high = 0, min(bound, len(tasks))
        while low < high and self._probes > 0:
            self._probes -= 1
            middle = (low + high + 1) // 2
            part = tasks[:middle]
            found = place(part, {cls: room[cls] for cls in dict.fromkeys(task.cls for task in part)}, scores)
            if isinstance(found, GroupPlacement):
                found.undo()
                low = middle
            else:
                high = middle - 1
        return low

    # ------------------------------------------------------------------ spread over several

    def _over(
        self, spread: Spread, tasks: Sequence[Task], room: Columns, scores: Columns, *, explained: bool = False
    ) -> GroupPlacement | Refusal:
        """Deal the tasks to vertices, and place those of each. If a vertex fits fewer, deal again with that limit."""
        level = spread.level
        order = _best_first(tasks, room, scores, level)
        limit = _capacity(tasks, room, level)
        by_class = {cls: _sums(column, level) for cls, column in room.items()}
        refused: tuple[Sequence[Task], Columns] | None = None
        text = "the match budget ran out before every spread was tried"
        for _ in range(self.budget + 1):
            shares = _Deal(spread, order, limit, by_class).dealt(tasks)
            if isinstance(shares, str):
                text = shares
                break
            done: list[GroupPlacement] = []
            for vertex, part in shares.items():
                here = _only({task.cls: room[task.cls] for task in part}, level.of_row == vertex)
                found = self.matcher.place(part, here, scores)
                if isinstance(found, Refusal):
                    refused = refused or (part, here)
                    self._undo(done)
                    limit[vertex] = self._fewer(part, here, scores)
                    break
                done.append(found)
            else:
                for other in done[1:]:
                    done[0].join(other)
                return done[0]
        if explained and refused is not None:
            found = self.matcher.explain(*refused, scores)
            if isinstance(found, GroupPlacement):
                found.undo()
            else:
                text = f"{text}: {found.reason}"
        return Refusal(text)

    def _fewer(self, part: Sequence[Task], room: Columns, scores: Columns) -> int:
        """How many of these tasks fit a vertex that does not fit all: exact for one class, else one fewer."""
        if len(room) > 1:
            return len(part) - 1
        self._probes = max(self._probes, _PROBES)
        return self._most(part, len(part) - 1, room, scores, self.matcher.place)

    def _undo(self, done: Sequence[GroupPlacement]) -> None:
        for placement in reversed(done):
            placement.undo()


class _Deal(msgspec.Struct):
    """Deals tasks to vertices: each to the chosen vertex with the fewest pods of the group."""

    spread: Spread
    order: Sequence[int]
    limit: IntColumn
    by_class: Mapping[TaskClass, IntColumn]

    def dealt(self, tasks: Sequence[Task]) -> dict[int, list[Task]] | str:
        """The tasks of each vertex, or why the tasks cannot be divided in this way."""
        there, level = self.spread.there, self.spread.level
        total = len(tasks) + int(there.sum())
        usable = [v for v in self.order if self.limit[v] > 0 or there[v]]
        wanted = min(total, self.spread.over if self.spread.over is not None else len(usable))
        if len(usable) < wanted:
            have = f"only {len(usable)} of {len(level.vertices)} {'has' if len(usable) == 1 else 'have'} room"
            return f"the group must be spread over {wanted} {plural(str(level))}, but {have}"
        even = -(-total // max(1, wanted))
        usable.sort(key=lambda v: (not there[v], -min(int(self.limit[v]), even)))  # stable: then as in `order`
        for count in range(wanted, len(usable) + 1):
            chosen = usable[:count]
            if sum(int(self.limit[v]) for v in chosen) < len(tasks) and count < len(usable):
                continue
            shares = self._dealt_over(chosen, tasks)
            if shares is not None:
                return shares
        room = min(len(tasks), int(self.limit.sum()))
        fit = "fits" if len(tasks) == 1 else "fit"
        return f"{room} of {_pods(len(tasks))} {fit} if spread over {plural(str(level))} as requested"

    def _dealt_over(self, chosen: Sequence[int], tasks: Sequence[Task]) -> dict[int, list[Task]] | None:
        there = {v: int(self.spread.there[v]) for v in chosen}
        left = {v: int(self.limit[v]) for v in chosen}
        free = {cls: {v: int(column[v]) for v in chosen} for cls, column in self.by_class.items()}
        shares: dict[int, list[Task]] = {}
        for task in sorted(tasks, key=lambda task: sum(free[task.cls].values())):
            able = [v for v in chosen if left[v] > 0 and free[task.cls][v] > 0]
            if not able:
                return None
            vertex = min(able, key=there.__getitem__)
            there[vertex], left[vertex] = there[vertex] + 1, left[vertex] - 1
            free[task.cls][vertex] -= 1
            shares.setdefault(vertex, []).append(task)
        return shares


# ------------------------------------------------------------------ columns


def vertices_that_fit(
    tasks: Sequence[Task], room: Columns, scores: Columns, level: LevelVertices, needed: int
) -> list[int]:
    """The vertices that may fit as many tasks as needed, the best first."""
    capacity = _capacity(tasks, room, level)
    return [vertex for vertex in _best_first(tasks, room, scores, level) if capacity[vertex] >= needed]


def _pods(number: int) -> str:
    return f"{number} pods" if number > 1 else "1 pod"


def _only(columns: Columns, mask: BoolColumn) -> dict[TaskClass, IntColumn]:
    return {cls: np.where(mask, column, 0) for cls, column in columns.items()}


def _sums(column: IntColumn, level: LevelVertices) -> IntColumn:
    """The sum over the rows of each vertex, by its number."""
    inside = level.of_row >= 0
    return np.bincount(level.of_row[inside], column[inside], len(level.vertices)).astype(np.int64)


def _of_class(tasks: Sequence[Task]) -> Iterator[tuple[TaskClass, int]]:
    for cls in dict.fromkeys(task.cls for task in tasks):
        yield cls, sum(task.cls is cls for task in tasks)


def _capacity(tasks: Sequence[Task], room: Columns, level: LevelVertices) -> IntColumn:
    """By number of the vertex: the upper bound of the tasks that fit."""
    capacity = np.zeros(len(level.vertices), np.int64)
    for cls, count in _of_class(tasks):
        capacity += np.minimum(_sums(np.minimum(room[cls], count), level), count)
    return capacity


def _best_first(tasks: Sequence[Task], room: Columns, scores: Columns, level: LevelVertices) -> list[int]:
    """The vertices in descending order of the scores of the nodes that the tasks of each class would get."""
    worth = np.zeros(len(level.vertices), np.float64)
    for cls, count in _of_class(tasks):
        rows = np.flatnonzero((level.of_row >= 0) & (room[cls] > 0))
        rows = rows[np.lexsort((-scores[cls][rows], level.of_row[rows]))]
        vertex, each = level.of_row[rows], np.minimum(room[cls][rows], count)
        before = np.cumsum(each) - each
        starts = np.flatnonzero(np.r_[True, vertex[1:] != vertex[:-1]]) if len(rows) else np.zeros(0, np.int64)
        before -= np.repeat(before[starts], np.diff(np.r_[starts, len(rows)]))
        taken = np.clip(count - before, 0, each)
        worth += np.bincount(vertex, taken * scores[cls][rows].astype(np.float64), len(worth))
    return sorted(range(len(worth)), key=lambda number: (-worth[number], number))
