"""Random small clusters, and plugins of every scope and normaliser, for the properties of the core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from session_scheduler import Normalise, Refusal, Scope, hookimpl
from session_scheduler.model.objects import Affinity, KubeObject, Taint
from session_scheduler.testing import node, pod, pod_group

LABELS = ("a", "b", "c")


def allowed(how, raw):
    """The scores within the limits of a normaliser: only SPREAD accepts negative ones."""
    if how is Normalise.SPREAD:
        return raw
    return np.clip(raw + 50, 0, 100 if how is Normalise.NONE else None)


class LabelScore:
    """Static: a number, negative where that is allowed, by the node's label and the pod's label."""

    name = "label-score"
    score_scope = Scope.STATIC
    class_key_complete = True

    def __init__(self, normalise: Normalise, weight: int, worth: Sequence[int]) -> None:
        self.normalise, self.weight, self._worth = normalise, weight, worth

    @hookimpl
    def class_key(self, pod):
        return pod.metadata.labels.get("taste", "")

    @hookimpl
    def score(self, cls, nodes, mask):
        raw = np.zeros(len(nodes), np.int64)
        for index in np.flatnonzero(mask):  # rows with a cleared mask do not count
            label = nodes.node(int(index)).metadata.labels.get("kind", "a")
            raw[index] = self._worth[(LABELS.index(label) + len(cls.pod.metadata.labels.get("taste", ""))) % 3]
        return allowed(self.normalise, raw)


class FullScore:
    """By the pods on the node itself, raw or normalised over the feasible nodes."""

    name = "full-score"
    score_scope = Scope.NODE

    def __init__(self, normalise: Normalise, weight: int) -> None:
        self.normalise, self.weight = normalise, weight

    @hookimpl
    def score(self, nodes):
        return allowed(self.normalise, nodes.used("cpu") // 100 - 3 * nodes.used("pods"))


class AtMost:
    """At most a number of pods with a label on a node: reads the node alone."""

    name = "at-most"
    filter_scope = Scope.NODE

    def __init__(self, most: int) -> None:
        self._most = most

    @hookimpl
    def footprint(self, cls):
        return [("at-most", cls.pod.metadata.labels.get("taste", ""))]

    @hookimpl
    def filter(self, cls, nodes, mask):
        mask &= nodes.counter(("at-most", cls.pod.metadata.labels.get("taste", ""))) < self._most


class Level:
    """Keeps the number of pods on nodes with one label near that on the others: reads every node."""

    name = "level"

    def __init__(self, skew: int, normalise: Normalise) -> None:
        self._skew, self.normalise = skew, normalise

    def _counts(self, session, nodes):
        label = nodes.label("kind")
        every = session.table.all_rows()
        pods, labels, valid = every.used("pods"), every.label("kind"), session.table.valid()
        kinds = np.unique(labels[valid])
        counts = {kind: int(pods[valid & (labels == kind)].sum()) for kind in kinds.tolist()}
        return np.array([counts.get(kind, 0) for kind in label.tolist()], np.int64), min(counts.values(), default=0)

    @hookimpl
    def filter(self, session, nodes, mask):
        counts, least = self._counts(session, nodes)
        mask &= counts - least < self._skew

    @hookimpl
    def score(self, session, nodes):
        return self._counts(session, nodes)[0]


class Callbacks:
    """A predicate and a node order of some scope, with fractions that binary floats cannot represent."""

    name = "callbacks"

    def __init__(self, scope: Scope, base: float) -> None:
        self._scope, self._base = scope, base

    @hookimpl
    def on_session_open(self, session):
        session.add_node_order(self.worth, scope=self._scope)
        session.add_predicate(self.check, scope=self._scope)

    def worth(self, task, info):
        moving = info.idle("cpu") / 700 if self._scope is not Scope.STATIC else 0.0
        return self._base * len(info.labels.get("kind", "")) + 0.1 * ord(info.labels.get("kind", "a")) + moving

    def check(self, task, group, info):
        if self._scope is Scope.STATIC:
            return "is c" if info.labels.get("kind") == "c" and task.cls.requests.get("cpu", 0) > 900 else None
        return "is nearly full" if info.idle("cpu") < 150 else None


class Zones:
    """Groups of more than one task stay within the nodes of one label."""

    name = "zones"

    @hookimpl
    def node_subsets(self, session, group):
        if len(group.tasks) < 2:
            return None
        view = session.table.all_rows()
        column = view.label("kind")
        return [session.table.valid() & (column == view.label_id(label)) for label in LABELS]


class Banned:
    """Rejects groups by name."""

    name = "banned"

    @hookimpl
    def prefilter(self, group):
        return Refusal("banned") if group.name.endswith("7") else None


@dataclass(frozen=True)
class Plugins:
    """Builds the same plugins several times, because each scheduler needs its own."""

    choice: tuple[tuple[type, tuple[Any, ...]], ...]

    def build(self) -> list[object]:
        return [kind(*arguments) for kind, arguments in self.choice]


NORMALISERS = st.sampled_from(list(Normalise))
WEIGHTS = st.integers(1, 5)


@st.composite
def plugins(draw: st.DrawFn, *, beyond: bool = True, subsets: bool = True) -> Plugins:
    """Some of the plugins above; without `beyond` none reads more than one node."""
    chosen: list[tuple[type, tuple[Any, ...]]] = []
    if draw(st.booleans()):
        worth = tuple(draw(st.lists(st.integers(-50, 100), min_size=3, max_size=3)))
        chosen.append((LabelScore, (draw(NORMALISERS), draw(WEIGHTS), worth)))
    if draw(st.booleans()):
        chosen.append((FullScore, (draw(NORMALISERS), draw(WEIGHTS))))
    if draw(st.booleans()):
        chosen.append((AtMost, (draw(st.integers(1, 3)),)))
    if beyond and draw(st.integers(0, 2)) == 0:
        chosen.append((Level, (draw(st.integers(1, 3)), draw(NORMALISERS))))
    if draw(st.integers(0, 2)) == 0:
        scopes = list(Scope) if beyond else [Scope.STATIC, Scope.NODE]
        chosen.append((Callbacks, (draw(st.sampled_from(scopes)), draw(st.sampled_from([0.0, 0.3, -7.7, 1e15])))))
    if subsets and draw(st.integers(0, 3)) == 0:
        chosen.append((Zones, ()))
    if draw(st.integers(0, 3)) == 0:
        chosen.append((Banned, ()))
    return Plugins(tuple(chosen))


@st.composite
def nodes(draw: st.DrawFn, most: int = 9) -> list[KubeObject]:
    """Nodes of three labels, some of them tainted (a score that is normalised in reverse)."""
    found: list[KubeObject] = []
    for index in range(draw(st.integers(1, most))):
        taints = tuple(Taint(key=f"t{n}", effect="PreferNoSchedule") for n in range(draw(st.integers(0, 2))))
        found.append(
            node(
                f"n{index}", cpu=draw(st.sampled_from(["500m", "1", "2", "3"])), memory="4Gi",
                pods=draw(st.sampled_from([2, 3, 110])), labels={"kind": draw(st.sampled_from(LABELS))}, taints=taints,
            )
        )  # fmt: skip
    return found


@st.composite
def pods(draw: st.DrawFn, most: int = 8, largest: int = 5) -> list[KubeObject]:
    """Single pods, runs of equal pods, and groups of one or several classes; some do not fit."""
    found: list[KubeObject] = []
    for number in range(draw(st.integers(1, most))):
        size = draw(st.integers(1, largest))
        group = draw(st.sampled_from(["", "gang", "mixed", "basic", "some"]))
        name = f"g{number}"
        if group:
            least = {"gang": size, "mixed": size, "basic": None, "some": max(1, size - 1)}[group]
            found.append(pod_group(name, least, topology=draw(_CONSTRAINT)))
        shape = draw(_shape())
        for index in range(size):
            if group in ("mixed", "some"):
                shape = draw(_shape())
            found.append(pod(f"{name}-{index}", group=name if group else "", **shape))
    return found


@st.composite
def _shape(draw: st.DrawFn) -> dict[str, Any]:
    shape = {
        "cpu": draw(st.sampled_from(["100m", "200m", "500m", "1", "1500m"])),
        "labels": {"taste": draw(st.sampled_from(TASTES))},
        "host_port": draw(st.sampled_from([0, 0, 0, 80, 81])),
        "priority": draw(st.sampled_from([None, 5])),
    }
    if draw(st.integers(0, 3)) == 0:
        shape["affinity"] = draw(_affinity())
    if draw(st.integers(0, 3)) == 0:
        shape["topology_spread_constraints"] = tuple(draw(st.lists(_spread(), min_size=1, max_size=2)))
    return shape


TASTES = ("", "x", "xx")
_DOMAINS = st.sampled_from(["kubernetes.io/hostname", "kind"])
_CONSTRAINT = st.sampled_from([None, None, "kind", "kubernetes.io/hostname", "nowhere"])


@st.composite
def _selector(draw: st.DrawFn) -> dict[str, Any]:
    if draw(st.integers(0, 5)) == 0:
        return {}
    operator = draw(st.sampled_from(["In", "In", "NotIn"]))
    values = draw(st.lists(st.sampled_from(TASTES), min_size=1, max_size=2, unique=True))
    return {"matchExpressions": [{"key": "taste", "operator": operator, "values": values}]}


@st.composite
def _affinity(draw: st.DrawFn) -> Affinity:
    """Terms of every kind; required ones are less frequent."""
    lists: list[dict[str, Any]] = []
    for _ in range(2):
        found: dict[str, Any] = {}
        for name, most in (("required", 1), ("preferred", 2)):
            terms = [{"topologyKey": draw(_DOMAINS), "labelSelector": draw(_selector())} for _ in range(most)]
            terms = terms[: draw(st.integers(0, most))]
            weighted = [{"weight": draw(st.sampled_from([1, 7, 100])), "podAffinityTerm": term} for term in terms]
            found[f"{name}DuringSchedulingIgnoredDuringExecution"] = terms if name == "required" else weighted
        lists.append(found)
    return Affinity(pod_affinity=lists[0], pod_anti_affinity=lists[1])


@st.composite
def _spread(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "maxSkew": draw(st.integers(1, 2)),
        "topologyKey": draw(_DOMAINS),
        "whenUnsatisfiable": draw(st.sampled_from(["DoNotSchedule", "ScheduleAnyway"])),
        "labelSelector": draw(_selector()),
    }
