"""The answer of `explain` besides the refusals: the scores' parts, remedies, the best part of a gang, and the time."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import numpy as np
import pytest

from session_scheduler import Refusal, Scope, hookimpl
from session_scheduler.config.settings import QueueConfig, SchedulerConfig
from session_scheduler.engine.explain import explain_pending
from session_scheduler.framework import hooks
from session_scheduler.model.objects import (
    Affinity,
    LabelSelectorRequirement,
    NodeAffinity,
    NodeSelector,
    NodeSelectorTerm,
    Taint,
    Toleration,
)
from session_scheduler.testing import FakeCluster, gang, node, pod


def explained(*objects: Any, plugins: Any = ()) -> Any:
    cluster = FakeCluster()
    cluster.add(*objects)
    scheduler = cluster.start(*plugins)
    before = scheduler.cache.table.digest()
    answer = json.loads(json.dumps(explain_pending(scheduler)))
    assert scheduler.cache.table.digest() == before
    return answer


def verdict(*objects: Any, plugins: Any = (), on: str = "n1") -> Any:
    return explained(*objects, plugins=plugins)["pods"][0]["nodes"][on]


def changes(*objects: Any, plugins: Any = ()) -> dict[str, Any]:
    return {one["plugin"]: one["changes"] for one in verdict(*objects, plugins=plugins)["fitsIf"]}


# ------------------------------------------------------------------ scores


def test_the_parts_of_a_score_are_listed_by_plugin_and_add_up() -> None:
    class Likes:
        name = "likes"

        @hookimpl
        def on_session_open(self, session: Any) -> None:
            session.add_node_order(lambda task, node: 2.5, Scope.STATIC)

    reported = verdict(node("n1", cpu="4"), node("n2"), pod("p", cpu="1"), plugins=[Likes()])
    parts = {one["plugin"]: one for one in reported["scores"]}
    assert reported["score"] == sum(one["weight"] * one["score"] for one in reported["scores"])
    assert parts["likes"] == {"plugin": "likes", "weight": 1, "raw": 2.5, "score": 2.5}
    assert parts["TaintToleration"] == {"plugin": "TaintToleration", "weight": 3, "raw": 0, "score": 100}
    assert parts["NodeResourcesFit"]["score"] > 0


# ------------------------------------------------------------------ the summary


def test_a_node_with_two_reasons_is_counted_under_both() -> None:
    answer = explained(node("n1", cpu="1", memory="1Gi"), node("n2", cpu="1"), pod("p", cpu="2", memory="2Gi"))
    expected = "0/2 nodes are available: 1 Insufficient memory, 2 Insufficient cpu."
    assert answer["pods"][0]["summary"] == expected


def test_without_nodes_the_summary_is_kube_schedulers_sentence() -> None:
    assert explained(pod("p"))["pods"][0]["summary"] == "no nodes available to schedule pods"


# ------------------------------------------------------------------ remedies


def test_what_is_short_is_told_as_people_write_it_with_what_there_is() -> None:
    reported = changes(node("n1", cpu="2", memory="4Gi"), pod("r", cpu="500m", memory="3Gi", bound_to="n1"),
                   pod("p", cpu="2500m", memory="2Gi"))  # fmt: skip
    assert reported == {
        "NodeResourcesFit": ["2500m cpu were free on n1 (1500m of 2 now)", "2Gi memory were free on n1 (1Gi now)"]
    }
    assert changes(node("n1", pods="0"), pod("p")) == {
        "NodeResourcesFit": ["n1 allowed more than 0 pods, or ran one pod fewer"]
    }


def test_every_refusing_plugin_is_listed_not_only_the_first() -> None:
    taints = [Taint(key="team", value="x", effect="NoSchedule"), Taint(key="b", effect="NoExecute")]
    tainted = node("n1", cpu="1", unschedulable=True, labels={"zone": "a"}, taints=taints)
    tolerations = (Toleration(key="b", operator="Exists"),)
    reported = verdict(tainted, pod("p", cpu="2", node_selector={"zone": "b"}, tolerations=tolerations))
    assert reported["plugin"] == "NodeUnschedulable"
    assert {one["plugin"]: one["changes"] for one in reported["fitsIf"]} == {
        "NodeUnschedulable": [
            "n1 were uncordoned, or the pod tolerated node.kubernetes.io/unschedulable:NoSchedule"
        ],
        "TaintToleration": ["the taint team=x:NoSchedule were tolerated or absent from n1"],
        "NodeAffinity": ["n1 had the label zone=b"],
        "NodeResourcesFit": ["2 cpu were free on n1 (1 of 1 now)"],
    }  # fmt: skip


def test_a_port_that_is_taken_is_told() -> None:
    reported = changes(node("n1"), pod("r", host_port=80, bound_to="n1"), pod("p", host_port=80))
    assert reported == {"NodePorts": ["host port 80/TCP were free on n1"]}


def test_the_requirements_of_an_affinity_are_listed_by_term() -> None:
    zone = LabelSelectorRequirement(key="zone", operator="In", values=("b", "c"))
    disk = LabelSelectorRequirement(key="disk", operator="Exists")
    terms = (NodeSelectorTerm(match_expressions=(zone, disk)), NodeSelectorTerm(match_expressions=(disk,)))
    wants = Affinity(node_affinity=NodeAffinity(required=NodeSelector(node_selector_terms=terms)))
    assert changes(node("n1", labels={"zone": "a"}), pod("p", affinity=wants)) == {
        "NodeAffinity": ["n1 matched zone In (b, c) and disk Exists or disk Exists"]
    }


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ZONE, HOST = "zone", "kubernetes.io/hostname"


def near(key: str, *apps: str, **more: Any) -> dict[str, Any]:
    expression = {"key": "app", "operator": "In", "values": list(apps)}
    return {REQUIRED: [{"topologyKey": key, "labelSelector": {"matchExpressions": [expression]}, **more}]}


def spread(key: str, *, skew: int = 1, app: str = "web") -> dict[str, Any]:
    return {"maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": app}}}  # fmt: skip


IN_A = {ZONE: "a"}
WEB = {"app": "web"}


def test_a_required_nearby_pod_is_listed_with_its_domain() -> None:
    wants = Affinity(pod_affinity=near(ZONE, "web"))
    assert changes(node("n1", labels=IN_A), pod("p", affinity=wants)) == {
        "InterPodAffinity": ["a pod matching app=web ran in zone=a"]
    }
    assert changes(node("n1"), pod("p", affinity=Affinity(pod_affinity=near(ZONE, "web", "db")))) == {
        "InterPodAffinity": ["n1 had the label zone", "a pod matching app in (db, web) ran in the same zone as n1"]
    }
    everywhere = Affinity(pod_affinity=near(HOST, "web", namespaceSelector={}))
    assert changes(node("n1"), pod("p", affinity=everywhere)) == {
        "InterPodAffinity": ["a pod matching app=web in any namespace ran on n1"]
    }


def test_the_first_pod_of_its_kind_needs_only_the_label() -> None:
    wants = Affinity(pod_affinity=near(ZONE, "web"))
    assert changes(node("n1"), pod("p", labels=WEB, affinity=wants)) == {"InterPodAffinity": ["n1 had the label zone"]}


def test_an_affinity_that_no_pod_can_satisfy_has_no_remedy() -> None:
    never = near(ZONE, "web")
    never[REQUIRED][0]["labelSelector"]["matchExpressions"].append({"key": "app", "operator": "DoesNotExist"})
    assert changes(node("n1", labels=IN_A), pod("p", affinity=Affinity(pod_affinity=never))) == {
        "InterPodAffinity": None
    }


def test_pods_that_must_be_away_are_listed_with_the_pod_that_requires_it() -> None:
    keeps_away = Affinity(pod_anti_affinity=near(HOST, "web"))
    assert changes(node("n1"), pod("r", labels=WEB, bound_to="n1"), pod("p", affinity=keeps_away)) == {
        "InterPodAffinity": ["no pod matching app=web ran on n1"]
    }
    hates = pod("r", bound_to="n1", affinity=Affinity(pod_anti_affinity=near(ZONE, "web")))
    assert changes(node("n1", labels=IN_A), hates, pod("p", labels=WEB)) == {
        "InterPodAffinity": ["no pod with anti-affinity to this one ran in zone=a"]
    }


def test_contradictory_affinity_and_anti_affinity_are_listed() -> None:
    both = Affinity(pod_affinity=near(ZONE, "web"), pod_anti_affinity=near(HOST, "web"))
    assert changes(node("n1", labels=IN_A), pod("p", affinity=both)) == {
        "InterPodAffinity": ["a pod matching app=web that this pod's anti-affinity does not exclude ran in zone=a"]
    }
    assert changes(node("n1", labels=IN_A), pod("r", labels=WEB, bound_to="n1"), pod("p", affinity=both)) == {
        "InterPodAffinity": [
            "no pod matching app=web ran on n1",
            "the pods that the pod's affinity selects still ran there",
        ]
    }


def test_the_greatest_number_of_pods_in_a_full_domain_is_listed() -> None:
    nodes = (node("n1", labels=IN_A), node("n2", labels={ZONE: "b"}))
    there = [pod(f"r{number}", labels=WEB, bound_to="n1") for number in range(3)]
    assert changes(*nodes, *there, pod("p", labels=WEB, topology_spread_constraints=(spread(ZONE, skew=2),))) == {
        "PodTopologySpread": ["at most 1 pod matching app=web ran in zone=a (3 now)"]
    }
    both = (spread(ZONE), spread(HOST))
    assert changes(*nodes, *there, pod("p", labels=WEB, topology_spread_constraints=both)) == {
        "PodTopologySpread": [
            "at most 0 pods matching app=web ran in zone=a (3 now)",
            "at most 0 pods matching app=web ran on n1 (3 now)",
            "the pod's other spread constraints still held",
        ]
    }


def test_a_node_without_the_label_of_a_spread_gets_the_missing_label() -> None:
    wants = pod("p", labels=WEB, topology_spread_constraints=(spread(ZONE),))
    others = (node("n2", labels=IN_A), node("n3", labels={ZONE: "b"}), pod("r", labels=WEB, bound_to="n2"))
    assert changes(node("n1"), *others, wants) == {"PodTopologySpread": ["n1 had the label zone=b"]}
    assert changes(node("n1"), wants) == {"PodTopologySpread": ["n1 had the label zone with a unique value"]}
    assert changes(node("n1"), pod("r", labels=WEB, bound_to="n1"), wants) == {"PodTopologySpread": None}


def test_a_feature_that_a_node_does_not_declare_is_told() -> None:
    reported = changes(node("n1"), pod("p", host_network=True, host_users=False))
    assert reported == {"NodeDeclaredFeatures": ["n1 declared the feature UserNamespacesHostNetworkSupport"]}


class Moody:
    """Refuses every node; its answer proposes a remedy."""

    name = "moody"

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    @hookimpl
    def filter(self, mask: Any) -> None:
        mask[:] = False

    @hookimpl
    def fits_if(self, nodes: Any) -> Any:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def test_an_external_plugin_proposes_a_remedy() -> None:
    assert changes(node("n1"), pod("p"), plugins=[Moody([["the moon were full"]])]) == {"moody": ["the moon were full"]}
    assert changes(node("n1"), pod("p"), plugins=[Moody([None])]) == {"moody": None}
    assert changes(node("n1"), pod("p"), plugins=[Moody(None)]) == {"moody": None}


@pytest.mark.parametrize("answer", [["text"], [["a"], ["b"]], [[3]], 3, ValueError("boom")])
def test_a_wrong_answer_hides_nothing_but_itself(answer: Any) -> None:
    reported = verdict(node("n1", cpu="1"), pod("p", cpu="2"), plugins=[Moody(answer)])
    assert reported["plugin"] == "NodeResourcesFit"
    assert [one["plugin"] for one in reported["fitsIf"]] == ["NodeResourcesFit"]


class Whole:
    """Refuses pods as a whole, and proposes a remedy."""

    name = "whole"

    def __init__(self, said: Any) -> None:
        self._said = said

    @hookimpl
    def prepare(self) -> Any:
        return Refusal("not today", fits_if=self._said)


def test_a_plugin_that_refuses_a_pod_as_a_whole_says_what_would_help_beside_the_reason() -> None:
    (reported,) = explained(node("n1"), pod("p"), plugins=[Whole(("it were monday",))])["pods"]
    assert (reported["reason"], reported["fitsIf"]) == ("not today", ["it were monday"])
    assert "fitsIf" not in explained(node("n1"), pod("p"), plugins=[Whole(())])["pods"][0]


@pytest.mark.parametrize("said", ["text", [3], None, (3,)])
def test_what_is_no_tuple_of_texts_is_a_fault_of_the_plugin(said: Any) -> None:
    (reported,) = explained(node("n1"), pod("p"), plugins=[Whole(said)])["pods"]
    assert reported["reason"].startswith("plugin whole failed in prepare: ")
    assert "expected the Refusal's `fits_if` to be a tuple of strings" in reported["reason"]


def test_a_group_that_is_not_there_is_told_to_be_made() -> None:
    (reported,) = explained(node("n1"), pod("p", group="g"))["pods"]
    assert reported["fitsIf"] == ["PodGroup default/g existed"]


# ------------------------------------------------------------------ gangs


def test_a_gang_that_does_not_start_has_its_best_part_with_nodes() -> None:
    answer = explained(node("n1", cpu="2"), node("n2", cpu="1"), gang("g", 5, cpu="1"), pod("alone"))
    (group,) = answer["groups"]
    assert (group["namespace"], group["name"], group["minCount"], group["started"]) == ("default", "g", 5, 0)
    assert group["placeable"] == 3
    assert sorted(group["placement"].values()) == ["n1", "n1", "n2"]
    assert len(group["refused"]) == 2
    assert set(group["refused"].values()) == {"0/2 nodes are available: 2 Insufficient cpu."}


class AllOrNothing:
    """Places a group all-or-nothing on the first node that fits, as a matcher does."""

    name = "all-or-nothing"

    @hookimpl
    def place_group(self, session: Any, tasks: Any, room: Any) -> Any:
        free = room[tasks[0].cls]
        row = int(np.argmax(free))
        if free[row] < len(tasks):
            return Refusal("no match")
        return _Whole({task: session.node_at(row) for task in tasks})


class _Whole:
    def __init__(self, nodes: Any) -> None:
        self.nodes = nodes
        self.holds: dict[Any, Any] = {}

    def undo(self) -> None: ...
    def redo(self) -> None: ...
    def release(self, tasks: Any) -> None: ...


def test_a_plugin_that_places_all_or_nothing_is_called_for_one_pod_after_the_other() -> None:
    (group,) = explained(node("n1", cpu="2"), gang("g", 3, cpu="1"), plugins=[AllOrNothing()])["groups"]
    assert (group["placeable"], group["reason"]) == (2, "no match")


# ------------------------------------------------------------------ refusals of the pod as a whole


def test_a_full_queue_is_the_reason_and_a_gang_has_its_permitted_part() -> None:
    config = SchedulerConfig(queues=(QueueConfig(name="team", limit={"cpu": "2"}),))
    cluster = FakeCluster(config=config)
    team = {"fluence.flux-framework.org/queue": "team"}
    waiting = [pod("alone", cpu="2", labels=team), *gang("g", 2, cpu="1", labels=team)]
    cluster.add(node("n1", cpu="8"), pod("runs", cpu="1", labels=team, bound_to="n1"), *waiting)
    answer = explain_pending(cluster.start())
    reasons = {one["name"]: one["reason"] for one in answer["pods"]}
    limit = "queue 'team' has reached its limit of cpu: limit 2, allocated 1, requested 2"
    assert reasons["alone"] == limit
    assert reasons["g-0"] == reasons["g-1"] != ""
    assert reasons["g-0"].startswith("pod group is unschedulable: queue 'team' has reached its limit of cpu: limit 2")
    (group,) = answer["groups"]
    assert (group["placeable"], list(group["refused"])) == (1, ["g-1"])


def test_a_plugin_that_postpones_a_group_is_the_reason() -> None:
    class Later:
        name = "later"

        @hookimpl
        def on_session_open(self, session: Any) -> None:
            session.add_pre_allocation(lambda group: "not before noon")

    assert explained(node("n1"), pod("p"), plugins=[Later()])["pods"][0]["reason"] == "not before noon"


# ------------------------------------------------------------------ time


def test_the_time_of_each_plugins_hooks_and_callbacks_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "perf_counter", count().__next__)  # every call takes a second

    class Calls:
        name = "calls"

        @hookimpl
        def on_session_open(self, session: Any) -> None:
            session.add_node_order(lambda task, node: 1, Scope.STATIC)

    seconds = explained(*map(node, ("n1", "n2", "n3")), pod("p"), plugins=[Calls()])["seconds"]
    assert seconds["NodeUnschedulable"] >= 2  # prepare, and filter
    assert seconds["calls"] >= 1 + 3  # opening, and each node
