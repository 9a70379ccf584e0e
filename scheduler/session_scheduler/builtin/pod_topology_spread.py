"""The PodTopologySpread plugin: spreads matching pods evenly over zones, nodes or other topology domains."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
from pydantic import Field, model_validator

from session_scheduler.builtin import pod_topology_spread_hints
from session_scheduler.builtin.first_reasons import first_reasons
from session_scheduler.builtin.near_texts import pods_text, where_text
from session_scheduler.builtin.pods_near import PodsNear
from session_scheduler.builtin.spread_scoring import SoftConstraint, SpreadScoring
from session_scheduler.config.parsing import wrong_value
from session_scheduler.config.settings import PluginArguments
from session_scheduler.framework.session import Session
from session_scheduler.hookspecs import SKIP, Normalise, Prepared, Refusal, Scope, Skip, hookimpl
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.cluster_view import ClusterView
from session_scheduler.model.columns import BoolColumn, IntColumn, NodeView, natural
from session_scheduler.model.events import ClusterEventWithHint
from session_scheduler.model.expressions import is_int32
from session_scheduler.model.label_selectors import NOTHING, Selector, SelectorError, equal_to, selector_of
from session_scheduler.model.objects import LabelSelector, Pod
from session_scheduler.model.pod_counts import PodQuery
from session_scheduler.model.selectors import required_nodes, untolerated_taints

NOT_MATCHED: Final = "node(s) didn't match pod topology spread constraints"
NO_LABEL: Final = f"{NOT_MATCHED} (missing required label)"
HARD: Final = "DoNotSchedule"
SOFT: Final = "ScheduleAnyway"


class DefaultConstraint(PluginArguments):
    """A constraint for pods without their own; its selector is that of the pod's services and controller."""

    max_skew: Annotated[int, Field(ge=1)]
    topology_key: Annotated[str, Field(min_length=1)]
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"]
    min_domains: Annotated[int, Field(ge=1)] | None = None
    node_affinity_policy: Literal["Honor", "Ignore"] | None = None
    node_taints_policy: Literal["Honor", "Ignore"] | None = None


SYSTEM_DEFAULTS: Final = (
    DefaultConstraint(max_skew=3, topology_key="kubernetes.io/hostname", when_unsatisfiable=SOFT),
    DefaultConstraint(max_skew=5, topology_key="topology.kubernetes.io/zone", when_unsatisfiable=SOFT),
)


class PodTopologySpreadArguments(PluginArguments):
    """kube-scheduler's PodTopologySpreadArgs."""

    default_constraints: tuple[DefaultConstraint, ...] = ()
    """For pods without constraints, if `defaultingType` is List."""
    defaulting_type: Literal["System", "List"] = "System"
    """System: Kubernetes' own default constraints."""

    @model_validator(mode="after")
    def _one_source(self) -> PodTopologySpreadArguments:
        if self.default_constraints and self.defaulting_type == "System":
            raise wrong_value("require defaultingType List; set it, or remove the constraints",
                              at=("defaultConstraints",))  # fmt: skip
        seen = set()
        for index, one in enumerate(self.default_constraints):
            key = (one.topology_key, one.when_unsatisfiable)
            if key in seen:
                raise wrong_value(f"duplicate constraint for {key[0]!r} with {key[1]}; keep one of the two",
                                  at=("defaultConstraints", index))  # fmt: skip
            seen.add(key)
        return self


class _Written(msgspec.Struct, frozen=True, rename="camel"):
    """TopologySpreadConstraint, decoded here because the model stores it undecoded."""

    max_skew: int
    topology_key: str
    when_unsatisfiable: str
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None
    match_label_keys: tuple[str, ...] = ()


class Constraint(msgspec.Struct, frozen=True):
    """One constraint of the pod or the configuration, with its selector."""

    written: _Written | DefaultConstraint
    selector: Selector

    def query(self, namespace: str) -> PodQuery:
        """The pods that count. An empty selector counts none, although it matches every pod."""
        return PodQuery(frozenset((namespace,)), NOTHING if self.selector.empty else self.selector, ending=False)


class HardConstraint(msgspec.Struct, frozen=True):
    """A DoNotSchedule constraint, with the counts of the matching pods."""

    near: PodsNear
    eligible: BoolColumn
    """By domain: whether any of its nodes counts."""
    fewer_domains: bool
    """Whether there are fewer eligible domains than minDomains: then the global minimum is 0."""
    skew: int
    """maxSkew, or maxSkew - 1 if the pod matches its own selector."""
    query: PodQuery
    """The pods that count."""

    def most(self) -> int:
        """The highest count at which a domain fits another of the pods."""
        counts = self.near.by_domain()
        least = 0 if self.fewer_domains else int(counts[self.eligible].min(initial=np.iinfo(np.int64).max))
        return least + self.skew

    def allowed(self) -> BoolColumn:
        """By domain: whether it fits another of the pods. False for the last entry, nodes without the label."""
        allowed = self.near.by_domain() <= self.most()
        allowed[-1] = False
        return allowed


class SpreadState(msgspec.Struct, frozen=True):
    """A class's constraints in a session."""

    hard: tuple[HardConstraint, ...]
    soft: SpreadScoring | None


class PodTopologySpread:
    """Rejects nodes in domains with too many matching pods; nodes in domains with fewer such pods score higher."""

    Arguments = PodTopologySpreadArguments
    name = "PodTopologySpread"
    ignores_requests = True
    weight = 2
    filter_scope = Scope.ANY
    score_scope = Scope.ANY
    normalise = Normalise.NONE  # SpreadScoring normalises over the nodes that count

    def __init__(self, arguments: PodTopologySpreadArguments | None = None) -> None:
        given = arguments or PodTopologySpreadArguments()
        self._system = given.defaulting_type == "System"
        self._defaults = SYSTEM_DEFAULTS if self._system else given.default_constraints

    @hookimpl
    def events_to_register(self) -> Iterable[ClusterEventWithHint]:
        """Requeue when matching pods, nodes of the domains, or the default selectors change."""
        return pod_topology_spread_hints.events(self._hint_constraints)

    def _hint_constraints(self, cls: TaskClass, view: ClusterView) -> list[tuple[str, Selector, bool]]:
        """For each hard constraint: the key, the selector of the pods, and whether taints decide which nodes count."""
        return [
            (one.written.topology_key, NOTHING if one.selector.empty else one.selector,
             one.written.node_taints_policy == "Honor")
            for one in self._constraints(view, cls.pod, HARD)
        ]  # fmt: skip

    @hookimpl
    def class_key(self, pod: Pod, view: ClusterView) -> object:
        """For a pod without constraints: the selector of the defaults, and whether it matches the pod itself."""
        if pod.spec.topology_spread_constraints or not self._defaults:
            return None
        selector = view.default_selector(pod)
        return None if selector.empty else (selector.requirements, selector.matches(pod.metadata.labels))

    @hookimpl
    def prepare(self, session: Session, cls: TaskClass) -> Skip | Refusal | Prepared:
        """The constraints with their counts. Skips pods without constraints."""
        try:
            hard, soft = (self._constraints(session.view, cls.pod, action) for action in (HARD, SOFT))
        except (SelectorError, msgspec.ValidationError) as error:
            return Refusal(f"spec.topologySpreadConstraints: {error}")
        if not hard and not soft:
            return SKIP
        state = SpreadState(_hard(session, cls, hard), self._scoring(session, cls, soft) if soft else None)
        return Prepared(state, Scope.ANY if hard else SKIP, Scope.ANY if soft else SKIP)

    def _constraints(self, view: ClusterView, pod: Pod, action: str) -> list[Constraint]:
        """The pod's own constraints with this action, else the defaults. Raises SelectorError or ValidationError."""
        own = pod.spec.topology_spread_constraints
        if own:
            written = [_read(one) for one in own]
            return [Constraint(one, _selector(one, pod)) for one in written if one.when_unsatisfiable == action]
        defaults = [one for one in self._defaults if one.when_unsatisfiable == action]
        selector = view.default_selector(pod) if defaults else NOTHING
        return [] if selector.empty else [Constraint(one, selector) for one in defaults]

    def _scoring(self, session: Session, cls: TaskClass, constraints: Sequence[Constraint]) -> SpreadScoring:
        every_label = bool(cls.pod.spec.topology_spread_constraints) or not self._system
        keys = [one.written.topology_key for one in constraints] if every_label else []
        labelled = _labelled(session, keys)
        soft = []
        for one in constraints:
            where = labelled & _included(session, cls, one)
            query, written = one.query(cls.namespace), one.written
            soft.append(SoftConstraint(session, written.topology_key, query, written.max_skew, where))
        return SpreadScoring(soft, labelled)

    @hookimpl
    def filter(self, nodes: NodeView, mask: BoolColumn, state: SpreadState) -> None:
        """Clear the nodes that lack a constraint's label, and those in domains with too many pods."""
        for one in state.hard:
            np.logical_and(mask, _in_domains(one, nodes), out=mask)

    @hookimpl
    def reasons(self, nodes: NodeView, state: SpreadState) -> Mapping[str, BoolColumn]:
        """kube-scheduler's message for the first violated constraint."""
        return first_reasons(len(nodes), _violations(nodes, state), NOT_MATCHED)

    @hookimpl
    def unresolvable(self, nodes: NodeView, state: SpreadState) -> BoolColumn:
        """The nodes that lack the label of the first violated constraint."""
        return self.reasons(nodes, state)[NO_LABEL]

    @hookimpl
    def fits_if(self, cls: TaskClass, nodes: NodeView, state: SpreadState) -> Sequence[Sequence[str] | None]:
        """The changes that each node needs; None if a new label would also bring matching pods into the domain."""
        has_pods = np.zeros(len(nodes), np.bool_)
        for one in state.hard:
            has_pods |= nodes.pods(one.query) > 0
        limits = [(one, one.most(), one.allowed()) for one in state.hard]
        return [
            _changes(nodes, index, limits, cls.namespace, has_pods=bool(has_pods[index])) for index in range(len(nodes))
        ]

    @hookimpl
    def domain_quota(self, session: Session, cls: TaskClass, n: int) -> Sequence[tuple[BoolColumn, int]] | None:
        """n tasks spread evenly over the domains of the first hard constraint whose domains have several nodes."""
        try:
            constraints = self._constraints(session.view, cls.pod, HARD)
        except (SelectorError, msgspec.ValidationError):
            return None
        labels = cls.pod.metadata.labels
        for one, hard in zip(constraints, _hard(session, cls, constraints), strict=True):
            if not hard.near.domains.alone and one.selector.matches(labels) and not one.selector.empty:
                return _evenly(session, one.written.topology_key, hard, n)
        return None

    @hookimpl
    def score(self, nodes: NodeView, mask: BoolColumn, state: SpreadState) -> IntColumn | None:
        """0 to 100, the higher the fewer matching pods are in the node's domains."""
        return state.soft.score(nodes, mask) if state.soft is not None else None


def _read(constraint: dict[str, Any]) -> _Written:
    written = msgspec.convert(constraint, _Written)
    for field, number in (("maxSkew", written.max_skew), ("minDomains", written.min_domains or 0)):
        if not is_int32(number):
            raise SelectorError(f"{field}: expected a 32-bit integer of 1 or more, got {number}")
    return written


def _selector(written: _Written, pod: Pod) -> Selector:
    labels = pod.metadata.labels
    return selector_of(written.label_selector).also(
        equal_to({key: labels[key] for key in written.match_label_keys if key in labels})
    )


def _hard(session: Session, cls: TaskClass, constraints: Sequence[Constraint]) -> tuple[HardConstraint, ...]:
    labelled = _labelled(session, [one.written.topology_key for one in constraints])
    return tuple(_hard_constraint(session, cls, one, labelled) for one in constraints)


def _hard_constraint(session: Session, cls: TaskClass, one: Constraint, labelled: BoolColumn) -> HardConstraint:
    where = labelled & _included(session, cls, one)
    query = one.query(cls.namespace)
    near = PodsNear(session, one.written.topology_key, [(1, query)], where)
    eligible = near.domains.inhabited(where)
    return HardConstraint(
        near,
        eligible,
        int(eligible.sum()) < (one.written.min_domains or 1),
        one.written.max_skew - one.selector.matches(cls.pod.metadata.labels),
        query,
    )


def _labelled(session: Session, keys: Iterable[str]) -> BoolColumn:
    """The rows whose node has all of these labels."""
    found: Any = session.table.valid()
    for key in keys:
        found &= session.table.domains(key).present
    return np.asarray(found)


def _included(session: Session, cls: TaskClass, one: Constraint) -> BoolColumn:
    """The rows whose pods count for a constraint, by its policies for node affinity and taints."""
    nodes, written = session.table.all_rows(), one.written
    found = np.ones(len(nodes), np.bool_)
    if (written.node_affinity_policy or "Honor") == "Honor":
        found &= required_nodes(nodes, cls.pod.spec)
    if written.node_taints_policy == "Honor":
        for carriers in untolerated_taints(nodes, cls.pod.spec.tolerations, ("NoSchedule", "NoExecute")):
            found &= ~carriers
    return found


def _in_domains(one: HardConstraint, nodes: NodeView) -> BoolColumn:
    numbers = one.near.domains.numbers
    return one.allowed()[numbers if nodes.rows is None else numbers[nodes.rows]]


def _violations(nodes: NodeView, state: SpreadState) -> Iterator[tuple[str, BoolColumn]]:
    """Each message with the nodes of the view that violate a constraint, constraint by constraint."""
    for one in state.hard:
        refused = ~_in_domains(one, nodes)
        yield NO_LABEL, refused & ~one.near.domains.present[nodes.row_numbers]
        yield NOT_MATCHED, refused


def _changes(
    nodes: NodeView,
    index: int,
    limits: Sequence[tuple[HardConstraint, int, BoolColumn]],
    namespace: str,
    *,
    has_pods: bool,
) -> list[str] | None:
    """The changes that a row needs to fit; None if a new label would also bring its matching pods into the domain.

    `limits`: each constraint with `most` and `allowed`.
    """
    node, row = nodes.node(index), int(nodes.row_numbers[index])
    labels, fewer = [], []
    for one, most, allowed in limits:
        near, domain = one.near, int(one.near.domains.numbers[row])
        if allowed[domain]:
            continue
        if near.domains.present[row]:
            pods = pods_text(one.query, namespace, "pod" if most == 1 else "pods")
            now = int(near.by_domain()[domain])
            fewer.append(f"at most {most} {pods} ran {where_text(node, near.key)} ({now} now)")
        elif has_pods:
            return None
        else:
            counts = near.by_domain().tolist()
            free = [(counts[number], value) for number, value in enumerate(near.domain_values()) if allowed[number]]
            value = f"={min(free)[1]}" if free else " with a unique value"
            labels.append(f"{node.metadata.name} had the label {near.key}{value}")
    if fewer and len(limits) > 1:  # fewer pods can lower the global minimum of another constraint
        fewer.append("the pod's other spread constraints still held")
    return [*dict.fromkeys(labels), *dict.fromkeys(fewer)]


def _evenly(session: Session, key: str, hard: HardConstraint, n: int) -> list[tuple[BoolColumn, int]]:
    """Assign one task after the other to the domain with the fewest pods, while that domain fits another one."""
    domains, counts = hard.near.domains, hard.near.by_domain().tolist()
    texts = session.table.all_rows()
    values = texts.label(key)
    numbers = np.flatnonzero(hard.eligible).tolist()
    first = {number: int(np.flatnonzero(domains.numbers == number)[0]) for number in numbers}
    names = {number: texts.label_value(int(values[row])) for number, row in first.items()}
    heap = [(counts[number], natural(names[number]), number) for number in numbers]
    heapq.heapify(heap)
    shares: dict[int, int] = {}
    for _ in range(n):
        if not heap or (hard.fewer_domains and heap[0][0] > hard.skew):
            break
        count, name, number = heap[0]
        shares[number] = shares.get(number, 0) + 1
        heapq.heapreplace(heap, (count + 1, name, number))
    return [(domains.numbers == number, share) for number, share in shares.items()]
