"""HTTP extenders between sessions: what they are asked, and what follows from their answers. The transport is fake."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace as changed

from session_scheduler import Scope, hookimpl
from session_scheduler.binding.binder import Binder, Request
from session_scheduler.builtin.extenders import Extenders
from session_scheduler.cluster.errors import NotFound
from session_scheduler.cluster.extender_client import ExtenderClient, ExtenderError
from session_scheduler.cluster.full_objects import KnownObjects
from session_scheduler.config.extenders import ExtenderConfig
from session_scheduler.engine.explain import explain_pending, reason_of
from session_scheduler.engine.extender_calls import ExtenderCalls
from session_scheduler.engine.scheduler import Scheduler
from session_scheduler.framework.extender_answers import NAME, Answer, ExtenderAnswers, Question
from session_scheduler.framework.hooks import HookCalls
from session_scheduler.model.class_table import ClassTable
from session_scheduler.model.columns import NodeTable
from session_scheduler.model.groups import Group, GroupRef, Phase, Task
from session_scheduler.model.objects import Node, Pod
from session_scheduler.testing import FakeCluster, gang, pod, pod_group

from ....tools.observing import observe
from .requeue_world import Tries

FOO = "example.com/foo"
Handler = Callable[[dict[str, Any]], Any]


def passing(*names: str, **failed: str) -> Handler:
    return lambda body: {"NodeNames": [name for name in body["NodeNames"] if name in names], "FailedNodes": failed}


def scores(**by_node: int) -> Handler:
    return lambda body: [{"Host": name, "Score": by_node.get(name, 0)} for name in body["NodeNames"]]


class FakeExtender(ExtenderClient):
    """Answers by verb; the default passes all nodes."""

    def __init__(self, name: str = "one", **fields: Any) -> None:
        fields = {"filterVerb": "filter", "nodeCacheCapable": True, **fields}
        super().__init__(ExtenderConfig.model_validate({"urlPrefix": f"http://{name}", **fields}, strict=False), "")
        self.handlers: dict[str, Handler] = {}
        self.asked: list[tuple[str, dict[str, Any]]] = []

    async def _post(self, verb: str, arguments: Mapping[str, Any]) -> bytes:
        body = json.loads(msgspec.json.encode(arguments))
        self.asked.append((verb, body))
        answer = self.handlers.get(verb, passing(*(body.get("NodeNames") or ())))(body)
        if isinstance(answer, Exception):
            raise answer
        return json.dumps(answer).encode()

    def seen(self, verb: str = "filter") -> list[tuple[str, list[str]]]:
        """The pod and the nodes of each request."""
        return [(body["Pod"]["metadata"]["name"], body["NodeNames"]) for asked, body in self.asked if asked == verb]


class Objects(KnownObjects):
    """The objects as the scheduler knows them, without pods that are gone."""

    def __init__(self) -> None:
        self.gone: set[str] = set()

    async def pod(self, pod: Pod) -> msgspec.Raw:
        if pod.metadata.name in self.gone:
            raise NotFound(f"pod {pod.key} is gone")
        return await super().pod(pod)


class World(FakeCluster):
    """A cluster whose scheduler has extenders."""

    def __init__(self, *extenders: FakeExtender, **options: Any) -> None:
        super().__init__(**options)
        self.extenders = extenders
        self.objects = Objects()
        self.answers = ExtenderAnswers(extender.config for extender in extenders)
        self._chosen.add(NAME, Extenders(self.answers))

    def _new_scheduler(self, profiles: Mapping[str, HookCalls]) -> Scheduler:
        calls = ExtenderCalls(self.extenders, self.objects, self.answers)
        return Scheduler(self.memory, self.config, profiles, self.clock, evaluation=self._evaluation, extenders=calls)

    def reason(self, name: str) -> str:
        task = next(task for task in self.scheduler.cache.tasks.values() if task.name == name)
        return reason_of(self.scheduler, task)

    def try_again(self) -> None:
        """Attempt all groups again."""
        for key in self.scheduler.cache.groups:
            self.scheduler.queue.requeue_now(key, self.clock.now())
        self.run(cycles=2)


class ByAnnotation:
    """Reads for the second pod an annotation that its class key does not have: that splits classes."""

    name = "by-annotation"
    filter_scope = Scope.STATIC

    def __init__(self) -> None:
        self.seen: list[Any] = []

    @hookimpl
    def filter(self, cls: Any, nodes: Any, mask: Any) -> None:
        if cls not in self.seen:
            self.seen.append(cls)
        if len(self.seen) > 1:
            mask &= nodes.named(cls.pod.metadata.annotations["rack"])


@pytest.fixture(params=["heap", "board", "naive"])
def evaluation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# ---------------------------------------------------------------------- filters and scores


def test_a_pod_waits_for_its_answer_without_an_attempt_and_then_goes_where_the_extender_allows(evaluation: str) -> None:
    one = FakeExtender()
    one.handlers["filter"] = passing("n2")
    world = World(one, evaluation=evaluation).nodes(3).pod("p")
    tries = observe(world.start(), Tries())
    world.run()
    assert (one.seen(), tries.of, world.scheduler.outcomes) == ([("p", ["n1", "n2", "n3"])], {}, {})
    world.run()
    world.assert_bound("p", "n2")
    assert tries.of == {"p": 1}


def test_an_extender_sees_the_nodes_that_pass_all_filters_and_earlier_extenders() -> None:
    first, second, spare = FakeExtender("first"), FakeExtender("second"), FakeExtender("spare", ignorable=True)
    first.handlers["filter"] = passing("n1", "n2")
    world = World(spare, first, second).node("n0", cpu="100m").nodes(3).pod("p", cpu="1")
    world.run(cycles=2)
    assert first.seen() == [("p", ["n1", "n2", "n3"])]
    assert second.seen() == spare.seen() == [("p", ["n1", "n2"])]


def test_scores_are_weighted_and_added_and_only_asked_for_several_nodes(evaluation: str) -> None:
    one = FakeExtender("one", prioritizeVerb="rank", weight=20)
    two = FakeExtender("two", prioritizeVerb="rank", weight=10)
    one.handlers["rank"], two.handlers["rank"] = scores(n1=3, n2=1), scores(n3=10, n2=5)
    world = World(one, two, evaluation=evaluation).nodes(3).pod("p")
    world.run(cycles=2)
    world.assert_bound("p", "n3")
    one.handlers["filter"] = passing("n1")
    world.pod("q").run(cycles=2)
    world.assert_bound("q", "n1")
    assert [name for name, _ in one.seen("rank")] == ["p"]


def test_rejections_are_counted_as_kube_scheduler_does() -> None:
    one = FakeExtender()
    one.handlers["filter"] = passing(n1="no licence", n2="no licence")
    world = World(one).nodes(3).node("n0", cpu="100m").pod("p", cpu="1")
    world.run(cycles=2)
    assert world.reason("p").startswith("0/4 nodes are available: 1 Insufficient cpu, 2 no licence.")
    (answer,) = explain_pending(world.scheduler)["pods"]
    assert answer["nodes"]["n1"]["plugin"] == NAME
    assert answer["nodes"]["n1"]["reason"] == "no licence"
    world.try_again()
    assert len(one.seen()) == 2  # each attempt asks again


def test_an_error_of_an_extender_fails_the_attempt_and_the_pod_backs_off() -> None:
    one = FakeExtender()
    one.handlers["filter"] = lambda _: {"Error": "tired"}
    world = World(one).nodes(1).pod("p")
    world.run(cycles=3)
    assert world.reason("p") == "tired"
    assert len(one.seen()) == 1
    assert explain_pending(world.scheduler)["pods"][0]["reason"] == "tired"
    one.handlers.clear()
    world.advance(2.0).run(cycles=2)
    world.assert_bound("p", "n1")


def test_an_ignorable_extender_and_failed_scores_are_skipped() -> None:
    spare = FakeExtender("spare", ignorable=True, prioritizeVerb="rank", weight=1)
    spare.handlers["filter"] = lambda _: ExtenderError("away")
    spare.handlers["rank"] = lambda _: ExtenderError("away")
    World(spare).nodes(2).pod("p").run(cycles=2)
    assert [name for name, _ in spare.seen("rank")] == ["p"]


@pytest.mark.parametrize(("answer", "problem"), [
    ({"NodeNames": ["n9"]}, 'extender "http://one" claims a filtered node "n9" which is not found'),
    ([], 'extender "http://one": the response cannot be decoded: Expected `object | null`, got `array`'),
    ({"NodeNames": [1]}, 'extender "http://one": the response cannot be decoded: Expected `str`, got `int`'),
])  # fmt: skip
def test_a_wrong_answer_is_an_error(answer: object, problem: str) -> None:
    one = FakeExtender()
    one.handlers["filter"] = lambda _: answer
    world = World(one).nodes(1).pod("p")
    world.run(cycles=2)
    assert world.reason("p").startswith(problem)


def test_names_of_fields_match_in_any_case_as_in_go() -> None:
    one = FakeExtender("one", prioritizeVerb="rank", weight=1)
    one.handlers["filter"] = lambda _: {"nodenames": ["n1", "n2"], "failedNodes": {"n3": "no"}}
    one.handlers["rank"] = lambda _: [{"host": "n2", "score": 7}]
    world = World(one).nodes(3).pod("p")
    world.run(cycles=2)
    world.assert_bound("p", "n2")


def test_whole_nodes_are_sent_to_an_extender_that_does_not_cache_them() -> None:
    one = FakeExtender("one", nodeCacheCapable=False)
    one.handlers["filter"] = lambda body: {"Nodes": {"items": body["Nodes"]["items"][1:]}}
    world = World(one).nodes(2).pod("p")
    world.run(cycles=2)
    world.assert_bound("p", "n2")
    ((_, body),) = one.asked
    assert body["NodeNames"] is None
    assert [item["metadata"]["name"] for item in body["Nodes"]["items"]] == ["n1", "n2"]


# ---------------------------------------------------------------------- which pods


def test_only_pods_with_managed_resources_are_sent() -> None:
    one = FakeExtender("one", managedResources=[{"name": FOO}])
    world = World(one).node("n1", offers={FOO: "1"}).pod("p").pod("q", requests={FOO: "1"})
    world.run()
    world.assert_bound("p", "n1")
    assert one.seen() == [("q", ["n1"])]
    world.run()
    world.assert_bound("q", "n1")


def test_a_gang_waits_for_the_answers_of_all_its_members(evaluation: str) -> None:
    one = FakeExtender()
    one.handlers["filter"] = lambda body: passing("n1" if body["Pod"]["metadata"]["name"] == "g-0" else "n2")(body)
    world = World(one, evaluation=evaluation).nodes(3).gang("g", 2)
    world.run()
    assert sorted(one.seen()) == [("g-0", ["n1", "n2", "n3"]), ("g-1", ["n1", "n2", "n3"])]
    world.run()
    world.assert_bound("g-0", "n1")
    world.assert_bound("g-1", "n2")


def test_the_matcher_places_pods_and_gangs_where_the_extender_allows() -> None:
    one = FakeExtender()
    one.handlers["filter"] = lambda body: passing("n3" if body["Pod"]["metadata"]["name"] == "g-1" else "n2")(body)
    world = World(one).use("fluence").nodes(3).gang("g", 2).pod("p")
    world.run(cycles=2)
    assert {name: world.find(Pod, name).spec.node_name for name in ("g-0", "g-1", "p")} == {
        "g-0": "n2", "g-1": "n3", "p": "n2"
    }  # fmt: skip


def test_a_gang_with_one_refused_member_is_not_started() -> None:
    one = FakeExtender()
    one.handlers["filter"] = lambda body: passing(*(["n1"] if body["Pod"]["metadata"]["name"] == "g-0" else []))(body)
    world = World(one).nodes(3).gang("g", 2)
    world.run(cycles=2)
    assert world.find(Pod, "g-0").spec.node_name == ""


def test_an_incomplete_gang_is_not_asked_about() -> None:
    one = FakeExtender()
    world = World(one).nodes(3)
    world.add(gang("g", 2)[:-1])
    world.run(cycles=2)
    assert one.asked == []


# ---------------------------------------------------------------------- changes meanwhile


def test_an_answer_about_a_node_that_changed_is_not_used() -> None:
    one = FakeExtender()
    one.handlers["filter"] = passing("n1", "n2")
    world = World(one).nodes(2, cpu="1").pod("p", cpu="1")
    world.run()
    world.node("n1", cpu="1", labels={"new": "yes"}).run()
    world.assert_bound("p", "n2")


def test_if_only_unasked_nodes_fit_the_extenders_are_asked_again() -> None:
    one = FakeExtender()
    world = World(one).nodes(1, cpu="1").pod("p", cpu="1")
    world.run()
    world.node("n1", cpu="100m").node("n2", cpu="1").run()
    assert one.seen() == [("p", ["n1"]), ("p", ["n2"])]
    world.run()
    world.assert_bound("p", "n2")


def test_an_answer_about_a_pod_that_changed_is_not_used() -> None:
    one = FakeExtender()
    world = World(one).nodes(1).pod("p")
    world.run()
    old = world.find(Pod, "p")
    world.add(changed(old, metadata=changed(old.metadata, labels={"new": "yes"}))).run()
    assert len(one.seen()) == 2
    world.run()
    world.assert_bound("p", "n1")


def test_a_pod_deleted_meanwhile_is_forgotten() -> None:
    one = FakeExtender()
    world = World(one).nodes(1).pod("p")

    def deleted(body: dict[str, Any]) -> Any:
        return passing("n1")(body)

    one.handlers["filter"] = deleted
    world.run()
    world.delete_pod("p").run(cycles=2)
    assert world.scheduler.in_flight.groups == []


def test_the_nominated_node_is_asked_about_first() -> None:
    one = FakeExtender()
    one.handlers["filter"] = passing("n2")
    world = World(one).nodes(2)
    low = pod("p")
    world.add(changed(low, status=changed(low.status, nominated_node_name="n1")))
    world.run(cycles=2)
    assert one.seen() == [("p", ["n1"]), ("p", ["n1", "n2"])]
    world.assert_bound("p", "n2")


def test_answers_are_dropped_once_their_pods_are_bound_or_deleted() -> None:
    one = FakeExtender()
    one.handlers["filter"] = lambda body: passing(*(["n1"] if body["Pod"]["metadata"]["name"] == "p" else []))(body)
    world = World(one).nodes(2).pod("p").pod("q").pod("r")
    uids = {name: world.find(Pod, name).metadata.uid for name in "pqr"}
    world.run(cycles=2)
    world.assert_bound("p", "n1")
    world.delete_pod("q").run()
    world.try_again()
    assert [name for name, uid in uids.items() if world.answers.latest(uid) is not None] == ["r"]


def test_an_answer_stays_while_the_bind_is_in_flight() -> None:
    world = World(FakeExtender()).nodes(1).pod("p").pod("q")
    world.run()
    answers, tasks = world.answers, world.scheduler.cache.tasks
    bound, assumed = tasks.values()
    bound.phase, assumed.phase = Phase.BOUND, Phase.ASSUMED
    answers.forget_bound(tasks)
    assert [answers.latest(task.uid) is not None for task in (bound, assumed)] == [False, True]


def test_an_answer_drops_no_other_answer() -> None:
    answers = ExtenderAnswers(())
    for number in range(1100):
        answers.put(str(number), Answer(pod("p"), {}, {}, {}))
    assert answers.latest("0") is not None


def test_an_answer_shares_the_nodes_of_its_question() -> None:
    world = World(FakeExtender()).nodes(2).pod("p")
    task = next(iter(world.start().cache.tasks.values()))
    question = Question(task, task.pod, {"n1": world.find(Node, "n1")})
    calls = ExtenderCalls(world.extenders, world.objects, world.answers)
    (answer,) = asyncio.run(calls.ask([question]))
    assert isinstance(answer, Answer)
    assert answer.offered is question.nodes


def test_a_group_that_waits_for_extenders_is_not_asked_again_after_a_class_split() -> None:
    one = FakeExtender()
    world = World(one).use(ByAnnotation()).nodes(1)
    world.pod("p", annotations={"rack": "n1"}).pod("q", annotations={"rack": "n1"}).run()
    assert sorted(one.seen()) == [("p", ["n1"]), ("q", ["n1"])]
    world.run()
    world.assert_bound("p", "n1")
    world.assert_bound("q", "n1")


# ---------------------------------------------------------------------- preemption


def test_preemption_works_for_a_pod_that_an_extender_wants_to_see() -> None:
    one = FakeExtender()
    world = World(one).nodes(1, cpu="1").pod("low", cpu="1")
    world.run(cycles=2)
    world.assert_bound("low", "n1")
    one.asked.clear()
    world.pod("high", cpu="1", priority=10).run(cycles=2)
    assert one.asked == []  # no node passes the filters
    world.finish_deletions().schedule()
    world.run(cycles=2)
    assert one.seen() == [("high", ["n1"])]
    world.assert_bound("high", "n1")


def victims_of(body: dict[str, Any]) -> dict[str, list[str]]:
    """By node, the uids of the victims in a request."""
    return {node: [pod["UID"] for pod in found["Pods"]] for node, found in body["NodeNameToMetaVictims"].items()}


def preempting_world(one: FakeExtender, nodes: int = 2) -> World:
    """A cluster where each node has a pod that the pod "high" may preempt."""
    world = World(one).nodes(nodes, cpu="1").pods(nodes, prefix="low", cpu="1")
    world.run(cycles=4)
    one.asked.clear()
    return world.pod("high", cpu="1", priority=10)


def test_an_extender_narrows_the_nodes_for_a_preemption() -> None:
    one = FakeExtender("one", preemptVerb="preempt")
    world = preempting_world(one)
    place = {world.find(Pod, name).spec.node_name: name for name in ("low-0", "low-1")}

    def only_n2(body: dict[str, Any]) -> Any:
        return {"NodeNameToMetaVictims": {"n2": body["NodeNameToMetaVictims"]["n2"]}}

    one.handlers["preempt"] = only_n2
    tries = observe(world.scheduler, Tries())
    world.run(cycles=2)
    ((verb, body),) = one.asked
    assert (verb, sorted(victims_of(body))) == ("preempt", ["n1", "n2"])
    assert tries.of == {"high": 1}
    assert world.find(Pod, place["n2"]).metadata.deletion_timestamp is not None
    assert world.find(Pod, place["n1"]).metadata.deletion_timestamp is None


@pytest.mark.parametrize(("answer", "reason"), [
    ({"NodeNameToMetaVictims": {}}, "no candidate node for preemption"),
    ({"NodeNameToMetaVictims": {"n1": {"Pods": []}}}, 'expected at least one victim pod on node "n1"'),
    (ExtenderError("away"), "away"),
])  # fmt: skip
def test_an_extender_can_prevent_a_preemption(answer: object, reason: str) -> None:
    one = FakeExtender("one", preemptVerb="preempt")
    world = preempting_world(one, 1)
    one.handlers["preempt"] = lambda _: answer
    world.run(cycles=2)
    assert world.reason("high") == f"0/1 nodes are available: 1 Insufficient cpu. preemption: {reason}"
    assert world.find(Pod, "low-0").metadata.deletion_timestamp is None


def test_an_ignorable_extender_that_fails_prevents_no_preemption() -> None:
    one = FakeExtender("one", preemptVerb="preempt", ignorable=True)
    world = preempting_world(one, 1)
    one.handlers["preempt"] = lambda _: ExtenderError("away")
    world.run(cycles=2)
    assert world.find(Pod, "low-0").metadata.deletion_timestamp is not None


def test_an_extender_that_only_preempts_is_asked_again_in_each_attempt() -> None:
    one = FakeExtender("one", filterVerb="", preemptVerb="preempt")
    world = preempting_world(one, 1)
    one.handlers["preempt"] = lambda _: {"NodeNameToMetaVictims": {}}
    world.run(cycles=2)
    assert world.find(Pod, "low-0").metadata.deletion_timestamp is None
    one.handlers["preempt"] = lambda body: {"NodeNameToMetaVictims": body["NodeNameToMetaVictims"]}
    world.try_again()
    assert world.find(Pod, "low-0").metadata.deletion_timestamp is not None


def test_an_extender_allows_the_preemption_of_a_whole_gang_on_several_nodes() -> None:
    one = FakeExtender("one", preemptVerb="preempt")
    one.handlers["preempt"] = lambda body: {"NodeNameToMetaVictims": body["NodeNameToMetaVictims"]}
    world = World(one).node("n1", cpu="1").node("n2", cpu="100m")
    world.add([pod_group("g", 2, disruption_mode="PodGroup"), pod("g-0", group="g", bound_to="n1", cpu="1"),
               pod("g-1", group="g", bound_to="n2", cpu="100m")])  # fmt: skip
    world.pod("high", cpu="1", priority=10).run(cycles=2)
    uids = {name: world.find(Pod, name).metadata.uid for name in ("g-0", "g-1")}
    ((_, body),) = one.asked
    assert {node: sorted(found) for node, found in victims_of(body).items()} == {"n1": sorted(uids.values())}
    assert all(world.find(Pod, name).metadata.deletion_timestamp is not None for name in uids)


@pytest.mark.parametrize("gone", [{"low-0"}, {"low-0", "low-1"}])
def test_a_node_with_a_victim_that_is_gone_is_no_candidate_for_an_extender(gone: set[str]) -> None:
    one = FakeExtender("one", preemptVerb="preempt", nodeCacheCapable=False)
    one.handlers["filter"] = lambda body: {"Nodes": body["Nodes"]}
    world = preempting_world(one)
    place = {name: world.find(Pod, name).spec.node_name for name in ("low-0", "low-1")}
    world.objects.gone = gone

    def allow_all(body: dict[str, Any]) -> Any:
        assert list(body["NodeNameToVictims"]) == [place["low-1"]]
        uids = [{"UID": one["metadata"]["uid"]} for one in body["NodeNameToVictims"][place["low-1"]]["Pods"]]
        return {"NodeNameToMetaVictims": {place["low-1"]: {"Pods": uids}}}

    one.handlers["preempt"] = allow_all
    world.run(cycles=2)
    assert [verb for verb, _ in one.asked] == ["preempt"] * (2 - len(gone))
    evicted = [name for name in place if world.find(Pod, name).metadata.deletion_timestamp is not None]
    assert evicted == sorted(place.keys() - gone)
    if not evicted:
        assert world.reason("high").endswith("preemption: no candidate node for preemption")


# ---------------------------------------------------------------------- bind


class Binds(FakeExtender):
    """Binds pods as an extender does."""

    world: World

    def __init__(self, **fields: Any) -> None:
        super().__init__("binder", bindVerb="bind", managedResources=[{"name": FOO}], **fields)

    error: Exception | None = None
    """Raised instead of a bind."""

    async def bind(self, pod: Pod, node: str) -> None:
        if self.error is not None:
            raise self.error
        await super().bind(pod, node)
        now = self.world.find(Pod, pod.metadata.name)
        await self.world.memory.bind(pod.metadata.namespace, pod.metadata.name, node=node, uid=pod.metadata.uid,
                                     resource_version=now.metadata.resource_version, annotations={})  # fmt: skip


def binding_world(binder: Binds) -> World:
    world = binder.world = World(binder).node("n1", offers={FOO: "2"})
    return world


def test_the_binding_extender_binds_its_pods_and_the_scheduler_the_others() -> None:
    binder = Binds()
    binder.handlers["bind"] = lambda _: {}
    world = binding_world(binder).pod("p", requests={FOO: "1"}).pod("q")
    world.run(cycles=2)
    world.assert_bound("p", "n1")
    world.assert_bound("q", "n1")
    uid = world.find(Pod, "p").metadata.uid
    (body,) = [body for verb, body in binder.asked if verb == "bind"]
    assert body == {"PodName": "p", "PodNamespace": "default", "PodUID": uid, "Node": "n1"}


def test_a_pod_does_not_wait_for_an_extender_that_only_binds() -> None:
    binder = Binds(filterVerb="")
    binder.handlers["bind"] = lambda _: {}
    world = binding_world(binder).pod("p", requests={FOO: "1"})
    world.run()
    world.assert_bound("p", "n1")


def test_an_error_of_the_binding_extender_fails_the_bind() -> None:
    binder = Binds()
    binder.handlers["bind"] = lambda _: {"Error": "no"}
    world = binding_world(binder).pod("p", requests={FOO: "1"})
    world.run(cycles=2)
    assert world.reason("p") == "binding to n1 failed: no"
    binder.handlers["bind"] = lambda _: {}
    world.advance(2.0).run(cycles=2)
    world.assert_bound("p", "n1")


async def test_a_bug_while_an_extender_binds_has_an_unknown_outcome() -> None:
    binder = Binds()
    world = binding_world(binder).pod("p", requests={FOO: "1"})
    bug = binder.error = ValueError("bug")
    table = NodeTable(0)
    now = world.find(Pod, "p")
    task = Task(now, ClassTable(table).of(now), Group(GroupRef("default", "p")))
    failure = await Binder(world.memory, extender=lambda _: binder).bind(Request(task, "n1", now, {}))
    assert failure is not None
    assert (failure.unknown, failure.error, failure.reason) == (True, bug, "binding to n1 failed: bug")


def test_the_scheduler_binds_if_an_ignorable_binder_fails() -> None:
    binder = Binds(ignorable=True)
    binder.handlers["bind"] = lambda _: ExtenderError("away")
    world = binding_world(binder).pod("p", requests={FOO: "1"})
    world.run(cycles=2)
    world.assert_bound("p", "n1")
