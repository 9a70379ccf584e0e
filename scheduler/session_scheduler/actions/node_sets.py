"""Node sets: the sets of nodes that `placing` tries for a group, and the ranking of those that fit it.

A group with a topology constraint has one set for each domain of its label, as with kube-scheduler's
TopologyPlacementGenerator. `score_placement` ranks the domains. Sets that plugins offer (`node_subsets`) rank by the
summed scores of their nodes. With both, each domain is combined with each offered set. Callbacks can divide all of
these sets further (`session.add_subset_nodes`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from session_scheduler.actions.request import PlacementRequest
from session_scheduler.framework.answers import Normalise
from session_scheduler.framework.evaluation import bounds, normalised
from session_scheduler.framework.hooks import HookCall, ScoreCall
from session_scheduler.framework.session import Session
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import BoolColumn, NodeTable, NodeView, natural, tie_break
from session_scheduler.model.groups import Group, Phase, Task
from session_scheduler.model.refusals import Refusal
from session_scheduler.state.scheduling_queue import TOPOLOGY_PLACEMENT

GENERATOR = TOPOLOGY_PLACEMENT
"""kube-scheduler's plugin for topology constraints; refusals name it."""
_HIGHEST, _HIGHEST_RAW = 100, 2**55


class NodeSet(msgspec.Struct, frozen=True, eq=False):
    """One set of nodes to place the whole group on."""

    mask: BoolColumn
    """Over all rows."""
    domain: str | None = None
    """The value of the topology label; None for a set that a plugin offers."""


class NotFitting(Exception):  # noqa: N818 (an answer rather than an error)
    """There is no node set to try; `refusal` has the reason."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.reason)
        self.refusal = refusal


def node_sets(session: Session, group: Group, level: str | None = None) -> list[NodeSet] | None:
    """The sets to try, in order; None for a group that may use all nodes. Raises NotFitting or PluginError.

    `level`: divide them further, by the domains of this label.
    """
    sets = _undivided_sets(session, group)
    for call in session.registered.subset_nodes:
        sets = _divided(session, call, group, sets)
    return sets if level is None else _in_level(session, group, level, sets)


def _in_level(session: Session, group: Group, level: str, sets: list[NodeSet] | None) -> list[NodeSet]:
    """The parts of the sets in each domain of a preferred level; only the members' domains if some are on nodes."""
    table = session.table
    values, texts = table.all_rows().label(level), table.label_values.names
    rows = [task.row for task in group.tasks.values() if task.row >= 0]
    allowed = values >= 0
    if rows:
        allowed &= np.isin(values, values[rows])
    found = [(natural(texts[number]), place, NodeSet(one.mask & (values == number), texts[number]))
             for place, one in enumerate([NodeSet(table.valid())] if sets is None else sets)
             for number in np.unique(values[one.mask & allowed]).tolist()]  # fmt: skip
    found.sort(key=lambda part: part[:2])
    return [part for *_, part in found] or _none(f"no node has the label {level!r}")


def _undivided_sets(session: Session, group: Group) -> list[NodeSet] | None:
    """The sets before callbacks divide them."""
    offered = _offered(session, group)
    key = group.topology_key
    if key is None:
        return None if offered is None else [NodeSet(mask) for mask in offered]
    domains = _domains(session, group, key)
    if offered is None:
        return domains
    both = (NodeSet(one.mask & mask, one.domain) for one in domains for mask in offered)
    return [one for one in both if one.mask.any()] or _none(f"plugins offer the group no node with the label {key!r}")


def _offered(session: Session, group: Group) -> list[BoolColumn] | None:
    """The first answer of `node_subsets`; None if no plugin answers."""
    for call in session.calls.functions("node_subsets"):
        answer = call(session, group)
        if answer is not None:
            subsets: list[BoolColumn] = call.guarded(list, answer)
            for task in group.in_phase(Phase.PENDING):
                session.runner.note_rejected(task, (call.plugin,))
            for mask in subsets:
                if getattr(mask, "shape", None) != (session.table.size,) or mask.dtype != np.bool_:
                    raise call.wrong(f"expected each subset to be a boolean mask over all {session.table.size} rows")
            return subsets
    return None


def _divided(session: Session, call: HookCall, group: Group, sets: list[NodeSet] | None) -> list[NodeSet] | None:
    """The sets after one plugin divided each of them. Raises NotFitting if it leaves none, or PluginError."""
    whole = [NodeSet(session.table.valid())] if sets is None else sets
    parts = [(one, session.runner.subsets(call, group, one.mask)) for one in whole]
    if all(masks is None for _, masks in parts):
        return sets
    for task in group.in_phase(Phase.PENDING):
        session.runner.note_rejected(task, (call.plugin,))
    found = [NodeSet(mask, one.domain) for one, masks in parts for mask in ((one.mask,) if masks is None else masks)]
    if not found:
        raise NotFitting(Refusal("plugins offer the group no nodes", call.plugin))
    return found


# ------------------------------------------------------------------ topology


def _domains(session: Session, group: Group, key: str) -> list[NodeSet]:
    """One set for each value of the label, in natural order; only the members' domain if some are on nodes."""
    table, pinned = session.table, _pinned(session.table, group, key)
    values, valid = table.all_rows().label(key), table.valid()
    texts = table.label_values.names
    found = [NodeSet(valid & (values == number), texts[number]) for number in np.unique(values[valid]) if number >= 0]
    wanted = [one for one in found if pinned is None or one.domain == pinned]
    return sorted(wanted, key=lambda one: natural(one.domain or "")) or _none(f"no node has the label {key!r}")


def _none(why: str) -> list[NodeSet]:
    raise NotFitting(Refusal(f"no feasible placements found: {why}", GENERATOR))


def _pinned(table: NodeTable, group: Group, key: str) -> str | None:
    """The domain of the members on nodes, terminating ones included; None if there are none. Raises NotFitting."""
    domains: set[str] = set()
    for task in sorted(group.tasks.values(), key=lambda task: task.key):
        if task.node is None:
            continue
        node = table.nodes[task.row] if task.row >= 0 else None
        if node is None:
            raise _undetermined(f"getting node for pod {task.key}: node {task.node!r} not found")
        if key not in node.metadata.labels:
            raise _undetermined(f"no topology domain found for pod {task.key}")
        domains.add(node.metadata.labels[key])
    if len(domains) > 1:
        raise _undetermined(f"more than 1 domain found for pod group: {', '.join(sorted(domains))}")
    return next(iter(domains), None)


def _undetermined(why: str) -> NotFitting:
    return NotFitting(Refusal(f"cannot determine domain for already scheduled pods: {why}", GENERATOR, failed=True))


# ------------------------------------------------------------------ ranking


class Fit(msgspec.Struct, frozen=True):
    """A set that fits the group: the tasks that fit there, and their summed scores."""

    nodes: NodeSet
    tasks: Sequence[Task]
    score: float


def ranked(session: Session, group: Group, fits: Sequence[Fit]) -> list[int]:
    """The indices of `fits`, the best first. The caller has undone the attempts on them. Raises PluginError."""
    if len(fits) == 1 or fits[0].nodes.domain is None:
        return sorted(range(len(fits)), key=lambda index: (-fits[index].score, index))
    totals = _totals(session, group, fits)
    ties = [tie_break(session.table.seed, fit.nodes.domain or "") for fit in fits]
    return sorted(range(len(fits)), key=lambda index: (-totals[index], ties[index], -fits[index].score, index))


def promising(request: PlacementRequest, sets: Sequence[NodeSet]) -> tuple[list[NodeSet], bool]:
    """The sets to try, and whether the first of them that fits the group is the best.

    The free capacity of a domain's nodes is an upper bound of the tasks that fit there. If each filter reads one row
    only, the bound is exact for tasks of one class that the core places itself. Then the scores of the domains are
    known before any attempt, and the number of domains hardly matters. Raises PluginError.
    """
    session, group, tasks = request.session, request.group, request.tasks
    counts = Counter(task.cls for task in tasks)
    if len(sets) < 2 or sets[0].domain is None:
        return list(sets), False
    if any(session.evaluator.evaluation(cls).any_filters for cls in counts):
        return _large_enough(request, sets, counts), False
    first = {task.cls: task for task in reversed(tasks)}
    capacity = {cls: session.evaluator.synced_board(first[cls]).capacity(count) for cls, count in counts.items()}
    most = [sum(min(count, int(capacity[cls][one.mask].sum())) for cls, count in counts.items()) for one in sets]
    candidates = [(one, count) for one, count in zip(sets, most, strict=True) if count >= request.needed]
    if not candidates or len(counts) > 1 or session.calls.places_groups:
        return [one for one, _ in candidates], False
    fits = [Fit(one, tasks[:count], 0.0) for one, count in candidates]
    return [fits[index].nodes for index in ranked(session, group, fits)], True


def _large_enough(request: PlacementRequest, sets: Sequence[NodeSet], counts: Mapping[TaskClass, int]) -> list[NodeSet]:
    """The sets on which enough tasks fit by the filters that read one row only. Classes that differ in their claims,
    for example, count together.
    """
    evaluator, alike = request.session.evaluator, dict[Hashable, list[TaskClass]]()
    for cls in counts:
        alike.setdefault(evaluator.row_key(cls), []).append(cls)
    totals = {key: sum(counts[cls] for cls in classes) for key, classes in alike.items()}
    capacity = {key: evaluator.most_by_rows(classes[0], totals[key]) for key, classes in alike.items()}
    return [one for one in sets
            if sum(min(total, int(capacity[key][one.mask].sum())) for key, total in totals.items())
            >= request.needed]  # fmt: skip


def _totals(session: Session, group: Group, fits: Sequence[Fit]) -> list[int]:
    """The weighted sum of the plugins' normalised scores for each domain, as in kube-scheduler's findBestPlacement."""
    total = np.zeros(len(fits), np.int64)
    every = np.ones(len(fits), np.bool_)
    for scoring in session.calls.placement_scores:
        raw = np.fromiter(_raw(session, group, fits, scoring), np.int64, len(fits))
        total += scoring.weight * normalised(raw, bounds(raw, every, scoring.normalise), scoring.normalise)
    scores: list[int] = total.tolist()
    return scores


def _raw(session: Session, group: Group, fits: Iterable[Fit], scoring: ScoreCall) -> Iterator[int]:
    for fit in fits:
        view = NodeView(session.table, np.flatnonzero(fit.nodes.mask))
        score = scoring.call(session, group, tuple(fit.tasks), view)
        highest = _HIGHEST if scoring.normalise is Normalise.NONE else _HIGHEST_RAW
        if score is not None and not (type(score) is int and 0 <= score <= highest):
            raise scoring.call.wrong(f"expected None or a whole number from 0 to {highest}, got {score!r}")
        yield score or 0
