"""The DefaultPreemption plugin: finds the fewest victims of lower priority for pods that fit on no node.

The victims for a single pod are on one node, as with kube-scheduler's DefaultPreemption; those for a gang are on any
nodes, as with its preemption for pod groups. Source: Kubernetes 1.36, pkg/scheduler/framework/preemption.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Final

from pydantic import Field, model_validator

from session_scheduler.builtin.candidates import NO_VICTIMS, WIDTH, CandidateSearch, Found
from session_scheduler.cluster.extender_client import MetaVictims
from session_scheduler.config.parsing import wrong_value
from session_scheduler.config.settings import PluginArguments
from session_scheduler.errors import FluenceError
from session_scheduler.framework.session import Narrow, Session
from session_scheduler.framework.victims import Candidate, best, importance_to_groups, with_surplus
from session_scheduler.hookspecs import NoPreemption, Preemption, Trial, hookimpl
from session_scheduler.model.columns import tie_break
from session_scheduler.model.events import ActionType, ClusterEventWithHint
from session_scheduler.model.groups import Task
from session_scheduler.model.objects import Pod
from session_scheduler.model.units import Unit, importance, is_single
from session_scheduler.state.budgets import Budgets

NEVER: Final = "not eligible due to preemptionPolicy=Never."
VICTIMS_TERMINATING: Final = "not eligible due to a terminating pod on the nominated node."
NO_VICTIMS_ANYWHERE: Final = "No preemption victims found for incoming preemptor"
NO_CANDIDATE: Final = "no candidate node for preemption"
NOT_HELPFUL: Final = "Preemption is not helpful for scheduling"
ANYWHERE: Final = "cluster"
"""The location of a gang's victims, in kube-scheduler's words."""


class DefaultPreemptionArguments(PluginArguments):
    """kube-scheduler's DefaultPreemptionArgs: the minimum number of candidate nodes for the dry run."""

    min_candidate_nodes_percentage: Annotated[int, Field(ge=0, le=100)] = 10
    """Percentage of the nodes where preemption may help."""
    min_candidate_nodes_absolute: Annotated[int, Field(ge=0)] = 100

    @model_validator(mode="after")
    def _not_both_zero(self) -> DefaultPreemptionArguments:
        if not self.min_candidate_nodes_percentage and not self.min_candidate_nodes_absolute:
            raise wrong_value("both this and minCandidateNodesPercentage are 0; raise one of them",
                              at=("minCandidateNodesAbsolute",))  # fmt: skip
        return self


class DefaultPreemption:
    """Finds victims of lower priority for tasks that fit on no node."""

    Arguments = DefaultPreemptionArguments
    name = "DefaultPreemption"
    weight = 1

    def __init__(self, arguments: DefaultPreemptionArguments | None = None) -> None:
        self._arguments = arguments or DefaultPreemptionArguments()

    @hookimpl
    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        """Requeue when a pod is bound: it may be a victim for groups rejected while its bind was in flight."""
        return [ClusterEventWithHint(Pod, ActionType.ADD)]

    @hookimpl
    def postfilter(self, session: Session, trial: Trial) -> Preemption | NoPreemption | None:
        """The victims and nominations, or why there are none. No answer for groups with a topology constraint."""
        if any(task.pod.spec.preemption_policy == "Never" for task in trial.tasks):
            return NoPreemption(NEVER, keep=True)
        if trial.group.topology_key is not None:
            return None  # kube-scheduler 1.36 does not preempt for such groups either
        if _victims_are_terminating(trial):
            return NoPreemption(VICTIMS_TERMINATING, keep=True)
        budgets = session.snapshot.cache.budgets.now()
        if trial.alone:
            return self._on_one_node(session, trial, budgets)
        return _in_cluster(trial, budgets) if trial.outranks_any else NoPreemption(NO_VICTIMS_ANYWHERE)

    def _on_one_node(self, session: Session, trial: Trial, budgets: Budgets) -> Preemption | NoPreemption:
        """Find candidates among the nodes, until there are enough, and choose the best.

        The order of the nodes is the tie-break's, but it begins elsewhere for each task. Only a node where a pod has a
        lower priority is tried.
        """
        rows, helpable = trial.candidates(tie_break(session.table.seed, trial.tasks[0].key))
        refused = Counter({NO_VICTIMS: helpable - len(rows), NOT_HELPFUL: trial.node_count - helpable})
        """By text, the number of nodes."""
        if not len(rows):
            return NoPreemption(trial.summary(refused))
        enough = self._enough(helpable)
        results = trial.results(WIDTH, budgets.uses)
        if results is None:
            nodes = list(map(trial.node_at, rows.tolist()))
            candidates, rejected, failure = _search_node_by_node(trial, budgets, nodes, enough, refused)
        else:
            search = CandidateSearch(trial, results, budgets.uses, partial(_dry_run, trial, budgets))
            found = search.find(rows, enough)
            if len(found) and session.narrow_preemption is None:
                return _preemption_on(trial, search.best(found))
            candidates = list(map(search.candidate, found.tolist()))
            rejected, failure = list(map(trial.node_at, search.rejected)), search.failure
            refused.update(search.reasons())
        if not candidates:  # then those victims that callbacks choose, where they reject the cheapest ones
            attempts = (trial.attempt(partial(_chosen_on_node, trial, budgets, node)) for node in rejected[:enough])
            candidates = [found for found in attempts if isinstance(found, Candidate)]
        if not candidates:
            if failure is not None:
                raise failure
            return NoPreemption(trial.summary(refused))
        if session.narrow_preemption is not None:
            narrowed = _narrowed(session, session.narrow_preemption, trial, candidates)
            if isinstance(narrowed, NoPreemption):
                return narrowed
            candidates = narrowed
        # as in kube-scheduler, candidates without violations come first among equal ones
        return _preemption_on(trial, best(sorted(candidates, key=lambda candidate: candidate.violations > 0)))

    def _enough(self, nodes: int) -> int:
        arguments = self._arguments
        share = nodes * arguments.min_candidate_nodes_percentage // 100
        return min(nodes, max(share, arguments.min_candidate_nodes_absolute))


def _search_node_by_node(
    trial: Trial, budgets: Budgets, nodes: Sequence[str], enough: int, refused: Counter[str]
) -> tuple[list[Candidate], list[str], FluenceError | None]:
    """Like `CandidateSearch`, if no results are kept: the candidates, the nodes whose cheapest victims callbacks
    reject, and the first failure of a plugin. Adds the number of nodes by text to `refused`.
    """
    candidates: list[Candidate] = []
    rejected: list[str] = []
    failure: FluenceError | None = None
    of_node: dict[str, list[Unit]] = {}
    if trial.beyond_nodes and trial.outranks_any:
        of_node = {node: trial.units([node]) for node in trial.nodes}
        trial.remove({task: None for units in of_node.values() for unit in units if _is_ending(trial, unit)
                      for task in unit.tasks})  # fmt: skip
    for found in _results(trial, budgets, nodes, enough, of_node):
        if isinstance(found, FluenceError):
            failure = failure or found
            continue
        if not isinstance(found, Candidate):
            refused.update(found)
            continue
        objection = trial.objection({trial.tasks[0]: found.node}, found.tasks)
        if objection is not None:
            refused[objection] += 1
            rejected.append(found.node)
            continue
        candidates.append(found)
        if len(candidates) >= enough and any(not candidate.violations for candidate in candidates):
            break
    return candidates, rejected, failure


def _preemption_on(trial: Trial, chosen: Candidate) -> Preemption:
    return Preemption({trial.tasks[0]: chosen.node}, chosen.tasks, chosen.node)


def _narrowed(
    session: Session, narrow: Narrow, trial: Trial, candidates: Sequence[Candidate]
) -> list[Candidate] | NoPreemption:
    """The candidates that extenders leave, with their victims; or why there are none."""
    cache, task = session.snapshot.cache, trial.tasks[0]
    there = {one.uid: one for candidate in candidates
             for one in (*cache.tasks_on(candidate.node), *candidate.tasks)}  # fmt: skip
    asked = {one.node: MetaVictims(tuple(task.uid for task in one.tasks), one.violations) for one in candidates}
    answer = narrow(task, asked, there)
    if isinstance(answer, str):
        return NoPreemption(answer, keep=True)
    found = []
    for one in candidates:
        victims = answer.get(one.node)
        if victims is not None and victims.uids == asked[one.node].uids:
            found.append(one)
        elif victims is not None:
            units = [Unit((there[uid],), there[uid].standing) for uid in victims.uids if uid in there]
            found.append(Candidate(one.node, sorted(units, key=importance), victims.violations))
    return found or NoPreemption(NO_CANDIDATE)


def _victims_are_terminating(trial: Trial) -> bool:
    """Whether victims already terminate on a nominated node, and preemption may still help there."""
    nodes = filter(None, map(trial.nominated, trial.tasks))
    return any(trial.others_end_on(node) for node in nodes if not trial.alone or trial.is_helpable(node))


def _results(
    trial: Trial, budgets: Budgets, nodes: Sequence[str], enough: int, of_node: Mapping[str, list[Unit]]
) -> Iterator[Found]:
    """For each node in turn the fewest victims that make it fit, or why it has none. Evaluates `enough` nodes at once.

    `of_node` has the units of each node if the trial has already removed the terminating ones. A plugin that fails for
    one node is still asked about the others.
    """
    step = max(1, enough)
    for start in range(0, len(nodes), step):
        part = nodes[start : start + step]
        units = {node: of_node[node] if node in of_node else trial.units([node]) for node in part}
        found = _together(trial, budgets, units)
        for node in part:
            known = found.get(node)
            yield trial.attempt(partial(_on_node, trial, budgets, node, units[node])) if known is None else known


def _dry_run(trial: Trial, budgets: Budgets, nodes: Sequence[str]) -> Mapping[str, tuple[Found, bool]]:
    """Like `_results`, and for each node whether its result depends on its own pods only, and did not fail.

    Whether a gang's member is a victim depends on the other members, which may be on other nodes.
    """
    units = {node: trial.units([node]) for node in nodes}
    found = {node: (one, not isinstance(one, FluenceError) and not _has_gang(units[node]))
             for node, one in _together(trial, budgets, units).items()}  # fmt: skip
    for node in nodes:
        if node not in found:
            found[node] = trial.attempt(partial(_on_node, trial, budgets, node, units[node])), False
    return found


def _together(trial: Trial, budgets: Budgets, units: Mapping[str, list[Unit]]) -> Mapping[str, Found]:
    """The results of the nodes that can be evaluated at once: by the node alone, without units on several nodes.

    Sorts the units of each node.
    """
    together = {}
    for node, some in units.items():
        some.sort(key=importance)
        if trial.by_node and (_are_single(some) or not any(unit.whole or unit.surplus for unit in some)):
            together[node] = some
    return _on_each(trial, budgets, together)


def _are_single(units: Sequence[Unit]) -> bool:
    """Whether all are single pods: a shortcut, because preemption asks this about every running pod."""
    return all(map(is_single, units))


def _has_gang(units: Sequence[Unit]) -> bool:
    return not _are_single(units) and any(task.group.is_gang for unit in units for task in unit.tasks)


def _on_each(trial: Trial, budgets: Budgets, units: Mapping[str, Sequence[Unit]]) -> Mapping[str, Found]:
    """Like `_on_nodes`. If a plugin raises, evaluates each node alone; an invalid answer fails all nodes."""
    found = trial.attempt(lambda: _on_nodes(trial, budgets, units))
    if not isinstance(found, FluenceError):
        return found
    if len(units) == 1 or found.__cause__ is None:
        return dict.fromkeys(units, found)
    return {node: _on_each(trial, budgets, {node: some})[node] for node, some in units.items()}


def _on_node(trial: Trial, budgets: Budgets, node: str, units: Sequence[Unit]) -> Candidate | list[str]:
    """Like `_on_nodes`, for one node: if a plugin that places groups decides, too, or a unit spans several nodes."""
    if not units:
        return [NO_VICTIMS]
    order = _Order(trial, budgets, units)
    potential = order.staying if trial.beyond_nodes else order.units
    for unit in potential:
        trial.remove(unit.tasks)
    if not trial.fits(node):
        (reasons,) = trial.why_each([node])
        trial.put_back(task for unit in potential for task in unit.tasks)
        return reasons
    victims: list[Unit] = []
    for unit in potential:
        trial.put_back(unit.tasks)
        if not trial.fits(node):
            trial.remove(unit.tasks)
            victims.append(unit)
    trial.put_back(task for unit in victims for task in unit.tasks)
    victims = with_surplus(victims, potential)
    return order.candidate(node, victims if potential is order.units else [*victims, *order.terminating])


def _on_nodes(trial: Trial, budgets: Budgets, units: Mapping[str, Sequence[Unit]]) -> dict[str, Candidate | list[str]]:
    """The dry run on all of these nodes at once."""
    results: dict[str, Candidate | list[str]] = {node: [NO_VICTIMS] for node, some in units.items() if not some}
    orders = {node: _Order(trial, budgets, some) for node, some in units.items() if some}
    needed = trial.reprieve({node: [unit.tasks for unit in order.units] for node, order in orders.items()})
    refusing = []
    for node, places in needed.items():
        if places is None:
            refusing.append(node)
        else:
            results[node] = orders[node].candidate(node, [orders[node].units[place] for place in places])
    if refusing:
        removed = [task for node in refusing for unit in units[node] for task in unit.tasks]
        trial.remove(removed)
        results.update(zip(refusing, trial.why_each(refusing), strict=True))
        trial.put_back(removed)
    return results


def _chosen_on_node(trial: Trial, budgets: Budgets, node: str) -> Candidate | None:
    """The fewest victims on a node among those that callbacks choose, if they reject the cheapest ones."""
    units = _chosen(trial, sorted(trial.units([node]), key=importance))
    if not units:
        return None
    task = trial.tasks[0]
    order = _Order(trial, budgets, units)

    def fits(removed: Sequence[Unit]) -> bool:
        return trial.objection({task: node}, _tasks_of(with_surplus(removed, units))) is None and trial.fits(node)

    potential = order.staying if trial.beyond_nodes else order.units
    if trial.objection({task: node}, _tasks_of(potential)) is not None:
        return None
    for unit in potential:
        trial.remove(unit.tasks)
    victims = _reprieve(trial, potential, fits) if fits(potential) else []
    trial.put_back(task for unit in (victims or potential) for task in unit.tasks)
    victims = with_surplus(victims, potential)
    found = order.candidate(node, victims if potential is order.units else [*victims, *order.terminating])
    return found if isinstance(found, Candidate) else None


def _chosen(trial: Trial, units: Sequence[Unit]) -> list[Unit] | None:
    """Those of these units, the most important first, that callbacks choose, in the order in which to put them back:
    the most damage first. None if no callback chooses.
    """
    damages = trial.damages([unit.tasks for unit in reversed(units)])
    if damages is None:
        return None
    known = [(damage, unit) for damage, unit in zip(reversed(damages), units, strict=True) if damage is not None]
    return [unit for _, unit in sorted(known, key=lambda entry: -entry[0])]


def _tasks_of(units: Iterable[Unit]) -> tuple[Task, ...]:
    return tuple(task for unit in units for task in unit.tasks)


def _is_ending(trial: Trial, unit: Unit) -> bool:
    return all(map(trial.is_ending, unit.tasks))


class _Order:
    """The order in which the dry run puts units back: those whose eviction violates a budget, then the others, each the
    most important first, then the terminating ones, whose eviction costs nothing.
    """

    def __init__(self, trial: Trial, budgets: Budgets, units: Sequence[Unit], *, sparing: bool = False) -> None:
        is_ending = trial.is_ending
        self.terminating = [unit for unit in units if is_ending(unit.tasks[0]) and _is_ending(trial, unit)]
        staying = [unit for unit in units if unit not in self.terminating] if self.terminating else units
        self.violating, others = budgets.split(staying, sparing=sparing)
        self.staying = [*self.violating, *others]
        self.units = [*self.staying, *self.terminating]

    def candidate(self, node: str, victims: Sequence[Unit]) -> Candidate | list[str]:
        """The candidate with these victims, or why the node has none."""
        if not victims:
            return [f'expected at least one victim pod on node "{node}"']
        violations = sum(unit in self.violating for unit in victims)
        return Candidate(node, sorted(victims, key=importance), violations, self.terminating)


def _in_cluster(trial: Trial, budgets: Budgets) -> Preemption | NoPreemption:
    """The fewest victims in the cluster that make the whole gang fit."""
    units = sorted(trial.units(trial.nodes), key=importance_to_groups)
    chosen = _chosen(trial, units)
    order = _Order(trial, budgets, units if chosen is None else chosen, sparing=True)
    if not order.units:
        return NoPreemption(NO_VICTIMS_ANYWHERE)
    removed = _remove_enough(trial, order.units, len(order.terminating) + len(trial.tasks))
    thorough = len(removed) == len(order.units) and trial.place() is None
    if thorough and trial.place(thorough=True) is None:
        return NoPreemption(trial.reason)
    victims = _reprieve(trial, removed, lambda _: trial.is_placeable(thorough=thorough))
    found = _preemption(trial, with_surplus(victims, order.units), thorough=thorough)
    if chosen is None or isinstance(found, Preemption):
        return found
    # the callbacks need other victims, or more of them
    for unit in order.units:
        if unit not in victims:
            trial.remove(unit.tasks)

    def attempt(left: Sequence[Unit]) -> Preemption | NoPreemption:
        return _preemption(trial, with_surplus(left, order.units), thorough=thorough)

    def fits(left: Sequence[Unit]) -> bool:
        return isinstance(attempt(left), Preemption)

    return attempt(_reprieve(trial, order.units, fits)) if fits(order.units) else found


def _preemption(trial: Trial, victims: Sequence[Unit], *, thorough: bool) -> Preemption | NoPreemption:
    """The preemption of these victims, which are removed now; or why it does not help or is not allowed."""
    placed = trial.place(thorough=thorough)
    if placed is None:  # also if a filter or plugin answers differently after pods were put back and removed again
        return NoPreemption(trial.reason)
    tasks = _tasks_of(sorted(victims, key=importance_to_groups))
    objection = trial.objection(placed, tasks)
    return Preemption(placed, tasks, ANYWHERE) if objection is None else NoPreemption(objection)


def _remove_enough(trial: Trial, units: Sequence[Unit], least: int) -> Sequence[Unit]:
    """Simulate removing units, from the last one and `least` of them first, until the gang fits. Returns the removed
    units. If these are all units, the gang may still not fit.

    If a victim may be a pod that the gang needs (an affinity, a spread), it removes all units at once.
    """
    start, step = len(units), least if trial.more_room_helps else len(units)
    while start:
        before, start = start, max(0, start - step)
        for unit in units[start:before]:
            trial.remove(unit.tasks)
        if start and trial.is_placeable():
            break
        step *= 4
    return units[start:]


def _reprieve(trial: Trial, units: Sequence[Unit], fits: Callable[[Sequence[Unit]], bool]) -> list[Unit]:
    """Put units back in this order while the rest `fits`. Returns the units that must stay removed.

    It puts back twice as many at once after each success, because usually only a few of many units are victims.
    """
    victims: list[Unit] = []
    start, step = 0, 1
    while start < len(units):
        several = units[start : start + step]
        for unit in several:
            trial.put_back(unit.tasks)
        if fits([*victims, *units[start + len(several) :]]):
            start, step = start + len(several), 2 * step
            continue
        for unit in several:
            trial.remove(unit.tasks)
        if len(several) == 1:
            victims += several
            start += 1
        else:
            step = max(1, len(several) // 2)
    return victims
