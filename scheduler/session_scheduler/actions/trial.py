"""The trial: a dry run of placing a group without some running pods. The session is unchanged afterwards.

The hooks `postfilter` and `reservation` receive a `Trial`; the protocol in `framework.answers` describes it for
plugins. `eligible` lists the victims and `removal` simulates their removal; this module evaluates nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar

import numpy as np
from msgspec.structs import replace

from session_scheduler.actions.eligible import EligibleVictims
from session_scheduler.actions.node_sets import NotFitting, node_sets
from session_scheduler.actions.placing import can_start, one_way, place_ready
from session_scheduler.actions.plugin_placement import answers_by_node, reservable_on
from session_scheduler.actions.removal import SimulatedRemoval
from session_scheduler.actions.reprieve import Units, by_amounts, by_filters
from session_scheduler.actions.request import PlacementRequest
from session_scheduler.errors import FluenceError
from session_scheduler.framework.answers import Scope
from session_scheduler.framework.callback_runner import Rejectors
from session_scheduler.framework.evaluation import evaluate, spare_of
from session_scheduler.framework.node_refusals import summarise
from session_scheduler.framework.row_results import RowResults
from session_scheduler.framework.session import Session
from session_scheduler.framework.statement import PlacementResult
from session_scheduler.framework.victims import units_of
from session_scheduler.framework.watchdog import answer_in_time
from session_scheduler.model.columns import BoolColumn, NodeView, RowIndex
from session_scheduler.model.groups import Group, Task, unique_classes
from session_scheduler.model.units import Unit
from session_scheduler.state.lowest_priorities import ABOVE_ALL

_T = TypeVar("_T")


class Trial:
    """Tasks of one group that fit on no node, and the running pods. Use it as a context manager."""

    def __init__(
        self, session: Session, group: Group, tasks: Sequence[Task], *, alone: bool, reclaims: bool = False
    ) -> None:
        """`reclaims`: victims come from other queues, whatever their priority."""
        self._session = session
        self.group = group
        self.tasks = tuple(tasks)
        self.alone = alone
        self._reclaims = reclaims
        self.priority = ABOVE_ALL if reclaims else max(task.preemptor_priority for task in tasks)
        runner, registered = session.runner, session.registered
        self._evaluation = session.evaluator.evaluation_for(tasks[0])
        self._placers = session.calls.places_groups
        alike = runner.reclaim_alike(group) if reclaims else ""
        promised = alike is not None if reclaims else registered.preempts_alike
        memorable = promised and not session.evaluator.naive
        asked = alone and self._placers and self._evaluation.refusal is None
        self._asks_reservable = asked and answers_by_node(session, tasks[0])
        unknown = self._placers or self._evaluation.any_filters or registered.trial_followers
        self.by_node = alone and (self._asks_reservable or not unknown)
        self.beyond_nodes = alone and self._placers and not self.by_node
        self._keeps = self.by_node and memorable
        limited = alike if reclaims else group.queue if runner.limits_preemption else ""
        traits = (group.preemptible, group.priority, group.queue) if registered.predicates else ()
        self._key = (tasks[0].cls, self.priority, session.nominated.left_out(tasks[0]), limited, traits)
        self._victims = EligibleVictims(session, group, self.priority, reclaims=reclaims, alike=memorable and alone)
        self._sparing = session.trials.sparing(self._key) if self._keeps else Rejectors()
        """The plugins that spare running pods. Reused results do not ask them again."""
        for plugin in sorted(self._sparing.of_victims):
            runner.note_group(group, plugin)
        self._removal = SimulatedRemoval(session, by_node=self.by_node)
        self._apart: Mapping[str, Hashable] | None = None
        """The nodes that have results of their own because of nominated pods, with a key for them."""
        self._shared: tuple[int, BoolColumn] | None = None
        """The rows that have no results of their own, with the number of nodes that do."""
        self._not_reservable: dict[str, str] = {}
        """By node: the last reason why the plugin that places groups cannot reserve the task's share there."""
        self.reason = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.put_back(list(self._removal.tasks))

    # ------------------------------------------------------------------ nodes and running pods

    @property
    def nodes(self) -> list[str]:
        """All nodes, in the order of the tie-break."""
        table = self._session.table
        ties = table.ties()
        return [name for _, name in sorted((ties[row], name) for name, row in table.row_of.items())]

    @property
    def node_count(self) -> int:
        """The number of nodes."""
        return len(self._session.table.row_of)

    def helpable(self) -> list[str]:
        """The nodes that reject the (first) task but may fit it once pods there terminate; in the order of `nodes`.

        If the plugin that places groups answers by node, these include the nodes that pass the filters. Empty if the
        task is rejected whatever the node.
        """
        return list(map(self.node_at, self._helpable_rows().tolist()))

    def node_at(self, row: int) -> str:
        """The name of a row's node."""
        return self._session.ledger.node_at(row)

    def is_helpable(self, node: str) -> bool:
        """Whether `helpable` has a node."""
        return self._session.table.row_of.get(node, -1) in self._helpable_rows()

    def _helpable_rows(self) -> RowIndex:
        if self._evaluation.refusal is not None:
            return np.zeros(0, np.int64)
        task = self.tasks[0]
        board = self._session.evaluator.board(task)
        rows = board.helpable(task)
        if self._asks_reservable and board.mask.any():
            rows = np.concatenate((rows, np.flatnonzero(board.mask)))
            rows = rows[np.argsort(self._session.runner.ties()[rows], kind="stable")]
        offered = self._offered()
        return rows if offered is None else rows[offered[rows]]

    @property
    def outranks_any(self) -> bool:
        """Whether any running task has a lower priority than the tasks, or than `ABOVE_ALL` to reclaim."""
        return bool(self._outranked_rows().any())

    def candidates(self, turn: int) -> tuple[RowIndex, int]:
        """The rows of `helpable` where a running task has a lower priority, in a queue with victims; and the number of
        all rows of `helpable`. The order begins after `turn` rows.
        """
        rows, there = self._helpable_rows(), self._outranked_rows()
        if not there.any():
            return rows[:0], len(rows)
        in_queues = self._victims.rows()
        there = there if in_queues is None else there & in_queues
        first = turn % max(1, len(rows))
        ordered = np.concatenate((rows[first:], rows[:first]))
        return ordered[there[ordered]], len(rows)

    def _outranked_rows(self) -> BoolColumn:
        return self._session.snapshot.cache.lowest_priorities.column() < self.priority

    def _offered(self) -> BoolColumn | None:
        """The union of the node sets that plugins offer the group; None for all nodes."""
        if not self._session.runner.divides_nodes:
            return None
        try:
            sets = node_sets(self._session, self.group)
        except NotFitting:
            sets = []
        return None if sets is None else np.logical_or.reduce([np.zeros(self._session.table.size, np.bool_),
                                                               *(one.mask for one in sets)])  # fmt: skip

    def running(self, node: str) -> list[Task]:
        """The eligible victims on a node, without tasks that callbacks spare or whose bind, or gang's bind, is in
        flight. Raises PluginError.
        """
        answer_in_time()
        with self._session.runner.collecting(self._sparing):
            return self._victims.on(node)

    def units(self, nodes: Iterable[str]) -> list[Unit]:
        """The units of lower priority among the eligible victims on these nodes (`running`). Raises PluginError."""
        nodes = list(nodes)
        if len(nodes) == 1:
            answer_in_time()
            with self._session.runner.collecting(self._sparing):
                single = self._victims.units_on(nodes[0])
            if single is not None:
                return single
        tasks = [task for node in nodes for task in self.running(node)]
        known = None if self._session.evaluator.naive else self._session.trials.units
        return units_of(tasks, self.priority, self.is_ending, known)

    def others_end_on(self, node: str) -> bool:
        """Whether another preemption evicts tasks on the node that this group could evict, too."""
        return self._victims.others_end_on(node)

    def objection(self, nominated: Mapping[Task, str], victims: Sequence[Task]) -> str | None:
        """Why callbacks object to evicting these victims for these nominations; None if not. Raises PluginError."""
        return self._victims.objection(nominated, victims)

    def damages(self, units: Sequence[Sequence[Task]]) -> list[int | None] | None:
        """For units of victims, in the order of eviction: the damage of each in addition to the others, None if it may
        not be evicted. None for all if no callback chooses among victims. Raises PluginError.
        """
        return self._session.runner.reclaim_damages(self.group, units) if self._reclaims else None

    @property
    def awaits_binds(self) -> bool:
        """Whether `running` skipped tasks of lower priority: there may be more victims once they are bound."""
        return bool(self._victims.on_nodes_with_binds)

    @property
    def more_room_helps(self) -> bool:
        """Whether removing more pods never makes a placement fail: no filter looks beyond its own row."""
        classes = unique_classes(self.tasks)
        return not any(self._session.evaluator.evaluation(cls).any_filters for cls in classes)

    def is_ending(self, task: Task) -> bool:
        """Whether a running task is terminating or chosen as a victim."""
        return self._session.ledger.is_ending(task)

    def nominated(self, task: Task) -> str | None:
        """The node that a task is nominated for."""
        return self._session.nominations.node_of(task)

    def results(self, width: int, now: Hashable = None) -> RowResults | None:
        """The results of tasks like this one with the same `now`, in `width` columns; None if results are not kept.

        Only `shares` rows may have a result that is kept there.
        """
        return self._session.trials.results((self._key, now), width) if self._keeps else None

    def shares(self, rows: RowIndex) -> BoolColumn:
        """Whether the results of these rows are the same for all tasks like this one.

        They may differ on nodes where the task must leave room for only some of the nominated pods, and where `running`
        skipped tasks whose binds are in flight.
        """
        if self._apart is None:
            self._apart = self._session.nominated.partly_expected(self.tasks[0]) if self._session.nominations else {}
        apart = len(self._apart) + len(self._victims.on_nodes_with_binds)
        if not apart:
            return np.ones(len(rows), np.bool_)
        if self._shared is None or self._shared[0] != apart:
            found, row_of = np.ones(self._session.table.size, np.bool_), self._session.table.row_of
            for node in (*self._apart, *self._victims.on_nodes_with_binds):
                if node in row_of:
                    found[row_of[node]] = False
            self._shared = apart, found
        return self._shared[1][rows]

    def alike(self, victims: Sequence[Task]) -> Hashable | None:
        """What decides `objection` to evicting these victims, whatever the node; None if callbacks promise nothing."""
        return self._victims.alike(victims)

    def recall(self, nodes: Sequence[str], now: Hashable = None) -> dict[str, Any]:
        """By node: what `keep` stored for tasks like this one with the same `now`; None if nothing, or out of date."""
        if not self._keeps:
            return dict.fromkeys(nodes)
        row_of, trials = self._session.table.row_of, self._session.trials
        return {node: trials.recall(self._own_key(node, now), row_of[node]) for node in nodes}

    def keep(self, node: str, found: object, now: Hashable = None) -> None:
        """Store a result that depends on the node's own pods and `now`, for the next task like this one."""
        if self._keeps and node not in self._victims.on_nodes_with_binds:
            self._session.trials.put(self._own_key(node, now), self._session.table.row_of[node], found)

    def _own_key(self, node: str, now: Hashable) -> Hashable:
        return self._key, now, self._session.nominated.expected_on(self.tasks[0], node)

    # ------------------------------------------------------------------ simulated removal

    def remove(self, tasks: Iterable[Task]) -> None:
        """Simulate removing running tasks. Raises PluginError."""
        self._removal.remove(tasks)

    def put_back(self, tasks: Iterable[Task]) -> None:
        """Put all of these removed tasks back, even if a plugin fails. Raises its PluginError afterwards."""
        self._removal.put_back(tasks)

    def attempt(self, find: Callable[[], _T]) -> _T | FluenceError:
        """The result of `find`. If a plugin fails, returns its error and puts back what `find` removed."""
        return self._removal.attempt(find)

    # ------------------------------------------------------------------ evaluation

    def fits(self, node: str) -> bool:
        """Whether a node fits the single task now. Raises PluginError."""
        if not self.fit_each([node])[0]:
            return False
        if self.by_node or not self._placers:
            return True
        with self._session.without_reasons():
            return self._placeable(self._session.table.row_of[node])

    def fit_each(self, nodes: Sequence[str]) -> list[bool]:
        """For each node, whether it passes the single task's filters now and, with `by_node`, also fits for the plugin
        that places groups. Raises PluginError.
        """
        answer_in_time()
        view = self._view(nodes)
        mask = self._lasting()[view.row_numbers]
        for filtering in self._evaluation.filters if mask.any() else ():
            if filtering.scope is not Scope.STATIC:
                filtering.run(view, mask, self.tasks[0])
                if not mask.any():
                    break
        fitting: list[bool] = mask.tolist()
        return self._reservable(nodes, fitting) if self._asks_reservable else fitting

    def reprieve(self, units: Mapping[str, Units]) -> dict[str, list[int] | None]:
        """For each node the places of the units that must stay removed so that the single task fits. All units are
        removed, then put back one by one, in order, while the task fits. None if removing all is not enough.

        Only if filters evaluate each node by that node alone (`by_node`), and for units on that node only. The pods are
        in place afterwards. Raises PluginError.
        """
        answer_in_time()
        view, naive = self._view(list(units)), self._session.evaluator.naive
        spare = None if naive or self._asks_reservable else spare_of(self._evaluation.filters, view)
        if not spare:
            return by_filters(self, units)
        return by_amounts(self._session.table, spare, self._lasting()[view.row_numbers], units)

    def _lasting(self) -> BoolColumn:
        """The rows that pass the filters that do not depend on pods. Evaluated once for a class, unless naive."""
        session, task = self._session, self.tasks[0]
        found = session.trials.lasting.get(task.cls)
        if found is None:
            found = session.table.valid()
            for filtering in self._evaluation.filters:
                if filtering.scope is Scope.STATIC:
                    filtering.run(session.table.all_rows(), found, task)
            if not session.evaluator.naive:
                session.trials.lasting[task.cls] = found
        return found

    def _reservable(self, nodes: Sequence[str], fitting: Sequence[bool]) -> list[bool]:
        """`fitting` without the nodes where the plugin that places groups cannot reserve the task's share."""
        asked = [node for node, fits in zip(nodes, fitting, strict=True) if fits]
        reasons = reservable_on(self._session, self.tasks[0], asked, self._removal.tasks) if asked else ()
        not_reservable = {node: why for node, why in zip(asked, reasons, strict=True) if why is not None}
        self._not_reservable.update(not_reservable)
        return [fits and node not in not_reservable for node, fits in zip(nodes, fitting, strict=True)]

    def _view(self, nodes: Sequence[str]) -> NodeView:
        rows = self._session.table.row_of
        return NodeView(self._session.table, np.array([rows[node] for node in nodes], np.int64))

    def _placeable(self, row: int) -> bool:
        """Whether the plugin that places groups would place the task on the row."""
        task = self.tasks[0]
        with self._session.ledger.statement(self.group) as statement:
            attempt = one_way(PlacementRequest(self._session, statement, self.group, [task], assignment={task: row}))
            if statement.placed_since(0):
                return True
            self.reason = attempt.refusal.reason if attempt.refusal else attempt.reasons.get(task, "")
            return False

    def why_each(self, nodes: Sequence[str]) -> list[list[str]]:
        """For each node, why it does not fit the single task now. Raises PluginError."""
        view = self._view(nodes)
        refused = evaluate(self._evaluation, view, np.ones(len(view), np.bool_), self.tasks[0])
        return [list(refused[index].reasons) if index in refused else [self._why_not_placed(node)]
                for index, node in enumerate(nodes)]  # fmt: skip

    def _why_not_placed(self, node: str) -> str:
        """Why the plugin that places groups would not place the single task on a node that passes the filters."""
        if node not in self._not_reservable and self._placeable(self._session.table.row_of[node]):
            return ""
        return self._not_reservable.get(node, self.reason)

    def place(self, *, thorough: bool = False) -> Mapping[Task, str] | None:
        """The nodes that the tasks would go to now, with at least the group's minimum placed; None if they do not fit,
        and `reason` says why. `thorough` adds the exhaustive search for small gangs, which is slow. Raises PluginError.
        """
        answer_in_time()
        result = PlacementResult(self.group)
        session, options = self._session, self._session.options
        session.options = options if thorough else replace(options, search_steps=0)
        try:
            with session.ledger.statement(self.group) as statement:
                place_ready(PlacementRequest(session, statement, self.group, self.tasks, self.group.needed), result)
                found = {task: task.node or "" for task in result.placed}
        finally:
            session.options = options
        if found:
            return found
        self.reason = result.refusal.reason if result.refusal else next(iter(result.reasons.values()), "")
        return None

    def is_placeable(self, *, thorough: bool = False) -> bool:
        """Whether `place` would succeed. Computed from the nodes' free capacity if the tasks share one class and each
        node's answer depends on that node alone. Raises PluginError.
        """
        answer_in_time()
        session, group = self._session, self.group
        elsewhere = self._placers or group.topology_key is not None or session.runner.divides_nodes
        if elsewhere or self._evaluation.any_filters or len(unique_classes(self.tasks)) > 1:
            with self._session.without_reasons():
                return self.place(thorough=thorough) is not None
        needed = group.needed
        if session.runner.limits_capacity:
            over = session.runner.over_capacity(group, self.tasks)
            if not can_start(group, [task for task in self.tasks if task not in over]):
                return False
        board = session.evaluator.synced_board(self.tasks[0])
        return can_start(group, self.tasks) and int(board.capacity(needed).sum()) >= needed

    def summary(self, reasons: Mapping[str, int] | Iterable[Iterable[str]]) -> str:
        """kube-scheduler's sentence: for the number of nodes by text, or for the texts of each node."""
        counts = reasons if isinstance(reasons, Mapping) else Counter(text for node in reasons for text in node)
        return summarise(self.node_count, counts)
