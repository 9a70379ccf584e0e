"""InterPodAffinity and PodTopologySpread in sessions: messages, symmetry, classes and undo."""

from __future__ import annotations

from typing import Any

import pytest

from session_scheduler.builtin.pod_topology_spread import PodTopologySpread, PodTopologySpreadArguments
from session_scheduler.config.parsing import validated
from session_scheduler.errors import InputError
from session_scheduler.model.meta import LabelSelector, ObjectMeta, OwnerReference
from session_scheduler.model.objects import Affinity, Pod
from session_scheduler.model.related import Namespace, ReplicaSet, Service, ServiceSpec, SetSpec
from session_scheduler.testing import FakeCluster, check_invariants, gang, node, pod

HOSTNAME, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
WEB = {"matchLabels": {"app": "web"}}


def term(key: str = HOSTNAME, selector: Any = WEB, **more: Any) -> dict[str, Any]:
    return {"topologyKey": key, "labelSelector": selector, **more}


def near(*terms: dict[str, Any]) -> Affinity:
    return Affinity(pod_affinity={REQUIRED: list(terms)})


def away(*terms: dict[str, Any]) -> Affinity:
    return Affinity(pod_anti_affinity={REQUIRED: list(terms)})


def evenly(key: str = ZONE, skew: int = 1, selector: Any = WEB, **more: Any) -> tuple[dict[str, Any], ...]:
    return ({"maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector,
             **more},)  # fmt: skip


def zones(*names: str, **options: Any) -> FakeCluster:
    cluster = FakeCluster()
    cluster.add(node(f"n{i}", labels={ZONE: name} if name else {}, **options) for i, name in enumerate(names))
    return cluster


# ---------------------------------------------------------------------- reasons


@pytest.mark.parametrize(
    ("wants", "text"),
    [
        ({"affinity": near(term(ZONE, {"matchLabels": {"app": "db"}}))}, "node(s) didn't match pod affinity rules"),
        ({"affinity": away(term())}, "node(s) didn't match pod anti-affinity rules"),
        ({"labels": {"app": "hated"}}, "node(s) didn't satisfy existing pods anti-affinity rules"),
        (
            {"topology_spread_constraints": evenly(minDomains=2), "labels": {"app": "web"}},
            "node(s) didn't match pod topology spread constraints",
        ),
        (
            {"topology_spread_constraints": evenly("rack")},
            "node(s) didn't match pod topology spread constraints (missing required label)",
        ),
    ],
)
def test_the_message_is_kube_schedulers(wants: dict[str, Any], text: str) -> None:
    cluster = zones("a")
    hating = away(term(ZONE, {"matchLabels": {"app": "hated"}}))
    cluster.add(pod("there", labels={"app": "web"}, bound_to="n0", affinity=hating))
    cluster.add(pod("p", **wants))
    cluster.run()
    assert cluster.reasons("p").startswith(
        f"0/1 nodes are available: 1 {text}. preemption: 0/1 nodes are available: 1 "
    )


@pytest.mark.parametrize("operator", ["Odd", "Gt"])
def test_an_invalid_selector_rejects_its_own_pod_only(operator: str) -> None:
    wrong = {"matchExpressions": [{"key": "app", "operator": operator, "values": ["1"]}]}
    cluster = zones("a")
    cluster.add(pod("near", affinity=near(term(selector=wrong))))
    cluster.add(pod("spread", topology_spread_constraints=evenly(selector=wrong)))
    cluster.add(pod("runs", labels={"app": "web"}, bound_to="n0", affinity=away(term(selector=wrong), term())))
    cluster.add(pod("other"), pod("odd", topology_spread_constraints=({"maxSkew": "many"},)))
    cluster.run()
    cluster.assert_bound("other")
    cluster.assert_pending("near", f"operator: {operator!r} is unknown")
    cluster.assert_pending("spread", f"operator: {operator!r} is unknown")
    cluster.assert_pending("odd", "spec.topologySpreadConstraints")


# ---------------------------------------------------------------------- within a session


def test_pods_placed_earlier_in_the_session_count() -> None:
    cluster = zones("a", "b", "c")
    cluster.add(pod(f"p{i}", labels={"app": "web", "index": str(i)}, affinity=away(term(ZONE))) for i in range(4))
    cluster.run()
    placed = [name for name in cluster.placements().values() if name]
    assert sorted(placed) == ["n0", "n1", "n2"]


def test_a_pod_without_terms_avoids_pods_with_anti_affinity_placed_in_the_same_session() -> None:
    cluster = zones("a", "a", "b")
    cluster.add(pod("1-hates-web", affinity=away(term(ZONE)), priority=2))
    cluster.add(pod("2-web", labels={"app": "web"}, priority=1))
    cluster.run()
    first, second = cluster.node_of("1-hates-web"), cluster.node_of("2-web")
    assert {first, second} in ({"n0", "n2"}, {"n1", "n2"})


def test_the_first_of_pods_with_affinity_to_each_other_fits_anywhere_and_the_others_follow() -> None:
    cluster = zones("a", "b", "c", "", cpu="2")
    cluster.add(gang("g", 2, cpu="1", labels={"app": "web"}, affinity=near(term(ZONE))))
    cluster.add(pod("alone", labels={"app": "db"}, affinity=near(term(ZONE, {"matchLabels": {"app": "none"}}))))
    cluster.run()
    nodes = {cluster.node_of("g-0"), cluster.node_of("g-1")}
    assert len(nodes) == 1
    assert nodes != {"n3"}
    cluster.assert_pending("alone", "didn't match pod affinity rules")


def test_a_gang_with_a_spread_is_placed_all_or_nothing() -> None:
    cluster = zones("a", "b", "b", cpu="2")
    constraints = evenly(selector={"matchLabels": {"app": "g"}})
    cluster.add(gang("fits", 4, cpu="500m", labels={"app": "g"}, topology_spread_constraints=constraints))
    scheduler = cluster.start()
    cluster.run()
    in_a = [key for key, name in cluster.placements().items() if name == "n0"]
    assert len(in_a) == 2
    before = scheduler.cache.table.digest()
    cluster.add(gang("fails", 9, cpu="500m", labels={"app": "g"}, topology_spread_constraints=constraints))
    cluster.run()
    assert scheduler.cache.table.digest() == before
    check_invariants(scheduler)


# ---------------------------------------------------------------------- changed objects


def test_pods_are_in_different_classes_once_a_selector_reads_their_labels() -> None:
    cluster = zones("a", unschedulable=True)
    cluster.add(pod("web", labels={"app": "web"}), pod("db", labels={"app": "db"}))
    scheduler = cluster.start()
    tasks = {task.name: task for task in scheduler.cache.tasks.values()}
    assert tasks["web"].cls is tasks["db"].cls
    cluster.add(pod("reads", affinity=away(term(ZONE))))
    cluster.run()
    assert tasks["web"].cls is not tasks["db"].cls


def test_a_pod_counts_by_its_current_labels() -> None:
    cluster = zones("a")
    cluster.add(pod("there", labels={"app": "web"}, bound_to="n0"), pod("p", affinity=away(term(ZONE))))
    cluster.run()
    cluster.assert_pending("p", "anti-affinity")
    cluster.add(pod("there", labels={"app": "db"}, bound_to="n0"))
    cluster.advance(60)
    cluster.run()
    cluster.assert_bound("p")


def test_a_namespace_selector_reads_the_current_labels_of_namespaces() -> None:
    cluster = zones("a", "b")
    cluster.add(Namespace(metadata=ObjectMeta(name="shop", labels={"team": "x"})))
    cluster.add(pod("there", namespace="shop", labels={"app": "web"}, bound_to="n0"))
    wanted = near(term(ZONE, namespaceSelector={"matchLabels": {"team": "y"}}))
    cluster.add(pod("p", affinity=wanted))
    cluster.run()
    cluster.assert_pending("p", "didn't match pod affinity rules")
    cluster.add(Namespace(metadata=ObjectMeta(name="shop", labels={"team": "y"})))
    cluster.advance(60)
    cluster.run()
    cluster.assert_bound("p", "n0")


def test_pods_on_a_deleted_node_count_again_after_it_is_added_again() -> None:
    cluster = zones("a", "b")
    cluster.add(pod("there", labels={"app": "web"}, bound_to="n0"), pod("p", affinity=away(term(ZONE))))
    scheduler = cluster.start()
    cluster.add(node("n1", labels={ZONE: "b"}, unschedulable=True))
    cluster.delete(type(node("n0")), "n0", "")
    cluster.run()
    cluster.add(node("n0", labels={ZONE: "a"}))
    cluster.advance(60)
    cluster.run()
    cluster.assert_pending("p", "1 node(s) didn't match pod anti-affinity rules")
    check_invariants(scheduler)


# ---------------------------------------------------------------------- default spread


def of_set(name: str, **options: Any) -> Pod:
    owner = OwnerReference(api_version="apps/v1", kind="ReplicaSet", name="web", uid="u", controller=True)
    made = pod(name, labels={"app": "web"}, **options)
    return Pod(metadata=ObjectMeta(name=name, namespace="default", labels={"app": "web"}, owner_references=(owner,)),
               spec=made.spec)  # fmt: skip


SERVICE = Service(metadata=ObjectMeta(name="web"), spec=ServiceSpec(selector={"app": "web"}))
SET = ReplicaSet(metadata=ObjectMeta(name="web"), spec=SetSpec(selector=LabelSelector(match_labels={"app": "web"})))


@pytest.mark.parametrize("related", [SERVICE, SET])
def test_pods_of_a_service_or_controller_are_spread_over_zones_by_default(related: Any) -> None:
    """The emptier nodes are all in one zone: without default spread both pods would go there."""
    answers = []
    for objects in ((), (related,)):
        cluster = zones("a", "a", "b", "b", cpu="8")
        cluster.add(*objects)
        cluster.add(pod(f"load-{i}", cpu="2", bound_to=f"n{i}") for i in (2, 3))
        cluster.add(of_set("there", bound_to="n0"), of_set("p"))
        cluster.run()
        answers.append(cluster.node_of("p"))
    assert answers[0] == "n1"
    assert answers[1] in ("n2", "n3")


def test_a_new_service_puts_pending_pods_into_other_classes() -> None:
    cluster = zones("a", unschedulable=True)
    cluster.add(of_set("web"), pod("other", labels={"app": "db"}))
    scheduler = cluster.start()
    tasks = {task.name: task for task in scheduler.cache.tasks.values()}
    assert tasks["web"].cls is tasks["other"].cls
    cluster.add(SERVICE)
    cluster.run()
    assert tasks["web"].cls is not tasks["other"].cls
    cluster.delete(Service, "web")
    cluster.run()
    assert tasks["web"].cls is tasks["other"].cls


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"defaultConstraints": [{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"}]},
         "args.defaultConstraints: require defaultingType List"),
        ({"defaultingType": "Odd"}, "args.defaultingType"),
        ({"defaultingType": "List", "defaultConstraints": [{"maxSkew": 0, "topologyKey": "z",
                                                            "whenUnsatisfiable": "DoNotSchedule"}]}, "maxSkew"),
        ({"defaultingType": "List", "defaultConstraints": 2 * [{"maxSkew": 1, "topologyKey": "z",
                                                                "whenUnsatisfiable": "DoNotSchedule"}]},
         "args.defaultConstraints[1]: duplicate constraint for 'z' with DoNotSchedule"),
    ],
)  # fmt: skip
def test_invalid_default_constraints_are_rejected_with_their_field(arguments: Any, problem: str) -> None:
    with pytest.raises(InputError) as error:
        validated(PodTopologySpreadArguments, arguments, "f", "args")
    assert problem in str(error.value)


def test_listed_default_constraints_replace_the_system_defaults() -> None:
    listed = {"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}
    plugin = PodTopologySpread(
        validated(PodTopologySpreadArguments, {"defaultingType": "List", "defaultConstraints": [listed]}, "f")
    )
    none = PodTopologySpread(validated(PodTopologySpreadArguments, {"defaultingType": "List"}, "f"))
    cluster = zones("a")
    cluster.add(SERVICE, of_set("p"))
    view = cluster.start().cache.view
    assert plugin.class_key(of_set("p"), view) == ((("app", "In", ("web",)),), True)
    assert none.class_key(of_set("p"), view) is None
