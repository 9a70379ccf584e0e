"""The plugin DefaultPreemption: preempts pods of lower priority for pods that fit nowhere, as few as suffice.

For a pod alone the victims are on one node, as in kube-scheduler's DefaultPreemption; for a gang anywhere, as in its
preemption for pod groups. Source: Kubernetes 1.36, pkg/scheduler/framework/preemption.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Final

from pydantic import Field, model_validator

from session_scheduler.config.parsing import wrong_value
from session_scheduler.config.settings import PluginArguments
from session_scheduler.errors import FluenceError
from session_scheduler.framework.session import Session
from session_scheduler.framework.victims import Candidate, Unit, best, importance, importance_to_groups, units_of
from session_scheduler.hookspecs import NoPreemption, Preemption, Trial, hookimpl
from session_scheduler.model.columns import tie_break
from session_scheduler.model.events import ActionType, ClusterEventWithHint
from session_scheduler.model.objects import Pod
from session_scheduler.state.budgets import Budgets

NEVER: Final = "not eligible due to preemptionPolicy=Never."
STILL_ENDING: Final = "not eligible due to a terminating pod on the nominated node."
NO_VICTIMS: Final = "No preemption victims found for incoming pod"
NO_VICTIMS_ANYWHERE: Final = "No preemption victims found for incoming preemptor"
NOT_HELPFUL: Final = "Preemption is not helpful for scheduling"
_Found = Candidate | list[str] | FluenceError
"""What a node costs, why it is no candidate, or the plugin's failure that ended its trial."""
ANYWHERE: Final = "cluster"
"""Where the victims of a gang are, in kube-scheduler's words."""


class DefaultPreemptionArguments(PluginArguments):
    """kube-scheduler's DefaultPreemptionArgs: of how many nodes at least it is worked out what a pod's place costs."""

    min_candidate_nodes_percentage: Annotated[int, Field(ge=0, le=100)] = 10
    """Of the nodes that come into question."""
    min_candidate_nodes_absolute: Annotated[int, Field(ge=0)] = 100

    @model_validator(mode="after")
    def _some(self) -> DefaultPreemptionArguments:
        if not self.min_candidate_nodes_percentage and not self.min_candidate_nodes_absolute:
            raise wrong_value("is 0, as minCandidateNodesPercentage is: raise one of the two",
                              at=("minCandidateNodesAbsolute",))  # fmt: skip
        return self


class DefaultPreemption:
    """Finds victims of lower priority for what fits nowhere."""

    Arguments = DefaultPreemptionArguments
    name = "DefaultPreemption"
    weight = 1

    def __init__(self, arguments: DefaultPreemptionArguments | None = None) -> None:
        self._arguments = arguments or DefaultPreemptionArguments()

    @hookimpl
    def events_to_register(self) -> Sequence[ClusterEventWithHint]:
        """A pod is bound: asked only for those that found no victims while pods of lower priority were being bound."""
        return [ClusterEventWithHint(Pod, ActionType.ADD)]

    @hookimpl
    def postfilter(self, session: Session, trial: Trial) -> Preemption | NoPreemption | None:
        """Victims and places, or why there are none; nothing for groups that must stay in one topology domain."""
        if any(task.pod.spec.preemption_policy == "Never" for task in trial.tasks):
            return NoPreemption(NEVER, keep=True)
        if trial.group.topology_key is not None:
            return None  # kube-scheduler 1.36 does not preempt for them either
        helpable = trial.helpable() if trial.alone else []
        if _victims_are_ending(trial, helpable):
            return NoPreemption(STILL_ENDING, keep=True)
        budgets = session.snapshot.cache.budgets.now()
        if trial.alone:
            offset = tie_break(session.table.seed, trial.tasks[0].key) % max(1, len(helpable))
            return self._on_one_node(trial, budgets, [*helpable[offset:], *helpable[:offset]])
        return _anywhere(trial, budgets)

    def _on_one_node(self, trial: Trial, budgets: Budgets, nodes: Sequence[str]) -> Preemption | NoPreemption:
        """Work out candidates among the nodes, in this order, until there are enough, and take the best."""
        candidates: list[Candidate] = []
        refused: list[list[str]] = []
        failure: FluenceError | None = None
        enough = self._enough(len(nodes))
        of_node: dict[str, list[Unit]] = {}
        if trial.beyond_nodes:
            of_node = {node: units_of(trial.running(node), trial.priority) for node in trial.nodes}
            trial.remove({task: None for units in of_node.values() for unit in units if _is_ending(trial, unit)
                          for task in unit.tasks})  # fmt: skip
        for found in _results(trial, budgets, nodes, enough, of_node):
            if isinstance(found, FluenceError):
                failure = failure or found
                continue
            if not isinstance(found, Candidate):
                refused.append(found)
                continue
            objection = trial.objection({trial.tasks[0]: found.node}, found.tasks)
            if objection is not None:
                refused.append([objection])
                continue
            candidates.append(found)
            if len(candidates) >= enough and any(not candidate.violations for candidate in candidates):
                break
        if not candidates:
            if failure is not None:
                raise failure
            others = trial.node_count - len(refused)
            return NoPreemption(trial.summary([*refused, *[[NOT_HELPFUL]] * others]))
        # what violates nothing comes first, as where kube-scheduler's other criteria leave several
        chosen = best(sorted(candidates, key=lambda candidate: candidate.violations > 0))
        return Preemption({trial.tasks[0]: chosen.node}, chosen.tasks, chosen.node)

    def _enough(self, nodes: int) -> int:
        arguments = self._arguments
        share = nodes * arguments.min_candidate_nodes_percentage // 100
        return min(nodes, max(share, arguments.min_candidate_nodes_absolute))


def _victims_are_ending(trial: Trial, helpable: Sequence[str]) -> bool:
    """Whether pods end already for these tasks. A node that takes no pod of the class any more is not waited for."""
    nodes = filter(None, map(trial.nominated, trial.tasks))
    return any(trial.others_end_on(node) for node in nodes if not trial.alone or node in helpable)


def _results(
    trial: Trial, budgets: Budgets, nodes: Sequence[str], enough: int, of_node: Mapping[str, list[Unit]]
) -> Iterator[_Found]:
    """Of each node in turn the fewest victims that make it fit, or why none do; so many are looked at together.

    `of_node`: the units of nodes where those that end already are away. A plugin that fails on one node is asked about
    the others all the same.
    """
    several = max(1, enough)
    for start in range(0, len(nodes), several):
        part = nodes[start : start + several]
        found: dict[str, _Found | None] = trial.recall(part, budgets.uses)
        units = {node: of_node[node] if node in of_node else units_of(trial.running(node), trial.priority)
                 for node in part if found[node] is None}  # fmt: skip
        together = {}
        for node, some in units.items():
            some.sort(key=importance)
            if trial.by_node and not any(unit.whole for unit in some):
                together[node] = some
        for node, result in _on_each(trial, budgets, together).items():
            found[node] = result
            if not isinstance(result, FluenceError):
                trial.keep(node, result, budgets.uses)
        for node in part:
            known = found[node]
            yield trial.attempt(partial(_on_node, trial, budgets, node, units[node])) if known is None else known


def _on_each(trial: Trial, budgets: Budgets, units: Mapping[str, Sequence[Unit]]) -> Mapping[str, _Found]:
    """As `_on_nodes`; where a plugin raises, each is asked about alone. What answers wrongly does so of all of them."""
    found = trial.attempt(lambda: _on_nodes(trial, budgets, units))
    if not isinstance(found, FluenceError):
        return found
    if len(units) == 1 or found.__cause__ is None:
        return dict.fromkeys(units, found)
    return {node: _on_each(trial, budgets, {node: some})[node] for node, some in units.items()}


def _on_node(trial: Trial, budgets: Budgets, node: str, units: Sequence[Unit]) -> Candidate | list[str]:
    """As `_on_nodes`, where the graph that places groups has its say, or units are on other nodes, too."""
    if not units:
        return [NO_VICTIMS]
    order = _Order(trial, budgets, units)
    at_stake = order.staying if trial.beyond_nodes else order.units
    for unit in at_stake:
        trial.remove(unit.tasks)
    if not trial.fits(node):
        (reasons,) = trial.why_each([node])
        trial.put_back(task for unit in at_stake for task in unit.tasks)
        return reasons
    victims: list[Unit] = []
    for unit in at_stake:
        trial.put_back(unit.tasks)
        if not trial.fits(node):
            trial.remove(unit.tasks)
            victims.append(unit)
    trial.put_back(task for unit in victims for task in unit.tasks)
    return order.candidate(node, victims if at_stake is order.units else [*victims, *order.ending])


def _on_nodes(trial: Trial, budgets: Budgets, units: Mapping[str, Sequence[Unit]]) -> dict[str, Candidate | list[str]]:
    """Step by step on all of these nodes at once: a filter costs the call, not the node."""
    results: dict[str, Candidate | list[str]] = {node: [NO_VICTIMS] for node, some in units.items() if not some}
    live = [node for node, some in units.items() if some]
    if not live:
        return results
    for node in live:
        for unit in units[node]:
            trial.remove(unit.tasks)
    fitting = trial.fit_each(live)
    refusing = [node for node, fits in zip(live, fitting, strict=True) if not fits]
    live = [node for node, fits in zip(live, fitting, strict=True) if fits]
    if refusing:
        results.update(zip(refusing, trial.why_each(refusing), strict=True))
    orders = {node: _Order(trial, budgets, units[node]) for node in live}
    order = {node: found.units for node, found in orders.items()}
    victims: dict[str, list[Unit]] = {node: [] for node in live}
    for place in range(max(map(len, order.values()), default=0)):
        concerned = [node for node in live if place < len(order[node])]
        for node in concerned:
            trial.put_back(order[node][place].tasks)
        for node, fits in zip(concerned, trial.fit_each(concerned), strict=True):
            if not fits:
                trial.remove(order[node][place].tasks)
                victims[node].append(order[node][place])
    for node in live:
        trial.put_back(task for unit in victims[node] for task in unit.tasks)
        results[node] = orders[node].candidate(node, victims[node])
    for node in refusing:
        trial.put_back(task for unit in units[node] for task in unit.tasks)
    return results


def _is_ending(trial: Trial, unit: Unit) -> bool:
    return all(map(trial.is_ending, unit.tasks))


class _Order:
    """In what order units are spared that are given with the more important ones first: those whose end would violate
    a budget, the others, and last those that end already, which is no price.
    """

    def __init__(self, trial: Trial, budgets: Budgets, units: Sequence[Unit], *, sparing: bool = False) -> None:
        self.ending = [unit for unit in units if _is_ending(trial, unit)]
        staying = [unit for unit in units if unit not in self.ending] if self.ending else units
        self.violating, others = budgets.split(staying, sparing=sparing)
        self.staying = [*self.violating, *others]
        self.units = [*self.staying, *self.ending]

    def candidate(self, node: str, victims: Sequence[Unit]) -> Candidate | list[str]:
        """What a node costs."""
        if not victims:
            return [f'expected at least one victim pod on node "{node}"']
        violations = sum(unit in self.violating for unit in victims)
        return Candidate(node, sorted(victims, key=importance), violations, self.ending)


def _anywhere(trial: Trial, budgets: Budgets) -> Preemption | NoPreemption:
    """The fewest victims in the cluster that let the whole gang be placed."""
    running = [task for node in trial.nodes for task in trial.running(node)]
    units = sorted(units_of(running, trial.priority), key=importance_to_groups)
    if not units:
        return NoPreemption(NO_VICTIMS_ANYWHERE)
    order = _Order(trial, budgets, units, sparing=True)
    away = _enough_away(trial, order.units, len(order.ending) + len(trial.tasks))
    thorough = len(away) == len(units) and trial.place() is None
    if thorough and trial.place(thorough=True) is None:
        return NoPreemption(trial.reason)
    victims = _not_spared(trial, away, thorough=thorough)
    placed = trial.place(thorough=thorough)
    if placed is None:  # it was just now, or before the last one was put back and taken away again
        return NoPreemption(trial.reason)
    victims.sort(key=importance_to_groups)
    ending = tuple(task for unit in victims for task in unit.tasks)
    objection = trial.objection(placed, ending)
    return Preemption(placed, ending, ANYWHERE) if objection is None else NoPreemption(objection)


def _enough_away(trial: Trial, units: Sequence[Unit], least: int) -> Sequence[Unit]:
    """Simulate removing units, the last ones first and `least` of them to begin with, until the gang can be placed;
    returns those that are away. Whether it can be when all are is not asked.

    Where what ends may also be what the gang needs (an affinity, a spread), all are.
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


def _not_spared(trial: Trial, units: Sequence[Unit], *, thorough: bool) -> list[Unit]:
    """Put units back in this order as far as the gang can still be placed; returns those that must stay away.

    Several are put back at once as long as that goes well: of many only few are in the way.
    """
    victims: list[Unit] = []
    start, step = 0, 1
    while start < len(units):
        several = units[start : start + step]
        for unit in several:
            trial.put_back(unit.tasks)
        if trial.is_placeable(thorough=thorough):
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
