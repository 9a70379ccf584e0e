"""The node controller: synchronizes nodes of Kubernetes and Slurm, but leaves nodes of other owners alone."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fluence_plugins.slurm_bridge.arguments import SlurmBridgeArguments
from fluence_plugins.slurm_bridge.names import (
    EXTERNAL_NODE_LABEL,
    MANAGED_TAINT,
    NODE_NAME_LABEL,
    PARTITIONS_ANNOTATION,
    SCHEDULER_NAME,
    TOPOLOGY_ANNOTATION,
)
from fluence_plugins.slurm_bridge.nodes.controller import NodeController, NodeSettings
from fluence_plugins.slurm_bridge.nodes.external_nodes import NodeRules, external, mark_of, slurm_name, steps
from fluence_plugins.slurm_bridge.plugin import SlurmBridgePlugin
from fluence_plugins.slurm_bridge.slurm.errors import SlurmError, TokenError, UnavailableError
from fluence_plugins.slurm_bridge.slurm.model import SlurmNode
from session_scheduler.cluster.errors import Conflict, Forbidden
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.framework.bindings import Runtime
from session_scheduler.model.objects import KubeObject, Node, NodeAddress, Taint
from session_scheduler.testing import node

from ..fake_slurm import FakeSlurm, external_node

MARK = mark_of("here")
OWN = Taint(key=MANAGED_TAINT, value=SCHEDULER_NAME, effect="NoExecute")
OTHER = Taint(key="other", effect="NoExecute")


def kube(
    name: str = "a",
    *,
    wanted: bool = True,
    cordoned: bool = False,
    cpu: str = "8",
    memory: str = "32000Mi",
    partitions: str | None = None,
    topology: str | None = None,
    called: str | None = None,
    taints: tuple[Taint, ...] = (),
    **allocatable: str,
) -> Node:
    """A node, external if `wanted`."""
    labels = ({EXTERNAL_NODE_LABEL: "true"} if wanted else {}) | ({NODE_NAME_LABEL: called} if called else {})
    said = {PARTITIONS_ANNOTATION: partitions, TOPOLOGY_ANNOTATION: topology}
    made = node(name, labels=labels)
    return replace(
        made,
        metadata=replace(made.metadata, annotations={key: value for key, value in said.items() if value is not None}),
        spec=replace(made.spec, unschedulable=cordoned, taints=taints),
        status=replace(
            made.status,
            allocatable={"cpu": cpu, "memory": memory}
            | {key.replace("_", "/").replace("nvidia/com", "nvidia.com"): value for key, value in allocatable.items()},
        ),
    )


def ours(name: str = "a", **more: Any) -> Any:
    return external_node(name, comment=MARK, **more)


def controller_of(world: World, runtime: Runtime) -> NodeController:
    client: Any = world.slurm  # it has the client's methods: test_fake_slurm.py
    return NodeController(world.cluster, client, runtime, world.settings)


class World:
    """A cluster and a Slurm in memory, with the node controller."""

    def __init__(self, *nodes: Node, slurm: FakeSlurm | None = None, cluster: MemoryCluster | None = None) -> None:
        self.cluster = cluster or MemoryCluster(nodes)
        self.slurm = slurm or FakeSlurm()
        self.reported: list[tuple[str, str]] = []
        self.elected = True
        self.time = 0.0
        self.settings = NodeSettings(cluster="here", period=0.01, again=0.01, rest=0)
        self.controller: NodeController | None = None

    def run(self, *acts: Callable[[], Any], passes: int = 3) -> World:
        """Run the controller some rounds, then again after each act."""

        async def serve() -> None:
            runtime = Runtime(lambda *_: None, lambda: self.elected, self.cluster, tell=self._record_event)
            self.controller = controller_of(self, runtime)
            task = asyncio.ensure_future(self.controller.run())
            try:
                await self._looked(passes)
                for act in acts:
                    act()
                    await self._looked(passes)
            finally:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

        asyncio.run(serve())
        return self

    async def _looked(self, passes: int) -> None:
        assert self.controller is not None
        until = self.controller.passes + passes
        async with asyncio.timeout(10):
            while self.controller.passes < until:  # noqa: ASYNC110 (no event to wait for)
                await asyncio.sleep(0.002)

    def _record_event(self, about: KubeObject, reason: str, note: str) -> None:
        assert reason == "NotInStepWithSlurm"
        self.reported.append((about.metadata.name, note))

    def put(self, made: Node) -> None:
        """Replace the node in Kubernetes, but keep its taints."""
        there = self.node(made.metadata.name)
        taints = there.spec.taints if there is not None else ()
        self.cluster.put(replace(made, spec=replace(made.spec, taints=taints)))

    def gone(self, name: str = "a") -> None:
        there = self.node(name)
        assert there is not None
        self.cluster._remove(there)

    def node(self, name: str = "a") -> Node | None:
        return next((one for one in self.cluster.objects(Node) if one.metadata.name == name), None)

    def taints(self, name: str = "a") -> tuple[Taint, ...]:
        there = self.node(name)
        assert there is not None
        return there.spec.taints

    def in_slurm(self, name: str = "a") -> Any:
        return self.slurm.nodes_by_name.get(name)

    def done(self, method: str) -> list[Any]:
        return [about for name, about in self.slurm.calls if name == method]


# ---------------------------------------------------------------------- cordons


def test_a_cordoned_node_is_drained_until_it_is_uncordoned() -> None:
    world = World(kube(wanted=False, cordoned=True), slurm=FakeSlurm([external_node("a")]))
    states = []

    def uncordon() -> None:
        states.append(world.in_slurm())
        world.put(kube(wanted=False))

    world.run(uncordon)
    assert (states[0].drained, states[0].reason) == (True, "slurm-bridge: Kubernetes node a is unschedulable")
    assert not world.in_slurm().drained
    assert len(world.done("update_node")) == 2


def test_a_drain_by_another_user_is_left_alone() -> None:
    slurm = FakeSlurm([external_node("a")])
    slurm.set_node("a", states=frozenset({"IDLE", "DRAIN"}), reason="disk broken")
    world = World(kube(wanted=False, cordoned=True), slurm=slurm)
    world.run(lambda: world.put(kube(wanted=False)))
    assert (world.in_slurm().drained, world.in_slurm().reason) == (True, "disk broken")
    assert world.slurm.calls == []


class Late(FakeSlurm):
    """While a list of nodes is on its way, another user drains a node in Slurm and then cordons it."""

    world: World

    async def nodes(self) -> tuple[SlurmNode, ...]:
        answer = await super().nodes()
        if self.reads["nodes"] == 2:
            self.set_node("a", states=frozenset({"IDLE", "DRAIN"}), reason="disk broken")
            self.world.put(kube(wanted=False, cordoned=True))
            await asyncio.sleep(0.01)
        return answer


def test_a_drain_from_before_the_cordon_is_kept() -> None:
    slurm = Late([external_node("a")])
    slurm.world = world = World(kube(wanted=False), slurm=slurm)
    world.run(lambda: world.put(kube(wanted=False)))
    assert slurm.calls == []
    assert world.in_slurm().reason == "disk broken"


@pytest.mark.parametrize("reason", ["", "not slurm-bridge: ours"])
def test_a_drain_is_ours_by_how_its_reason_begins(reason: str) -> None:
    slurm = FakeSlurm([external_node("a")])
    slurm.set_node("a", states=frozenset({"IDLE", "DRAIN"}), reason=reason)
    assert World(kube(wanted=False), slurm=slurm).run().slurm.calls == []


def test_a_drain_by_the_original_slurm_bridge_is_removed() -> None:
    slurm = FakeSlurm([external_node("a")])
    reason = "slurm-bridge: Corresponding Kubernetes node (a) is unschedulable"
    slurm.set_node("a", states=frozenset({"IDLE", "DRAIN"}), reason=reason)
    assert not World(kube(wanted=False), slurm=slurm).run().in_slurm().drained


def test_a_node_is_found_by_the_name_that_it_has_in_slurm() -> None:
    slurm = FakeSlurm([external_node("a"), external_node("n1")])
    world = World(kube("a", wanted=False, called="n1", cordoned=True), slurm=slurm).run()
    assert not world.in_slurm("a").drained
    assert world.in_slurm("n1").drained
    assert world.taints() == (OWN,)


# ---------------------------------------------------------------------- taints


def test_only_nodes_of_slurm_are_tainted() -> None:
    world = World(
        kube("a", wanted=False, taints=(OTHER,)), kube("b", wanted=False, taints=(OWN, OTHER)), kube("c", wanted=False),
        slurm=FakeSlurm([external_node("a"), external_node("elsewhere")]),
    ).run()  # fmt: skip
    assert [world.taints(name) for name in ("a", "b", "c")] == [(OTHER, OWN), (OTHER,), ()]


def test_a_taint_of_another_scheduler_is_replaced_on_a_node_of_slurms_only() -> None:
    theirs = Taint(key=MANAGED_TAINT, value="another", effect="NoExecute")
    softer = Taint(key=MANAGED_TAINT, value=SCHEDULER_NAME, effect="NoSchedule")
    world = World(
        kube("a", wanted=False, taints=(theirs, softer)), kube("b", wanted=False, taints=(theirs,)),
        slurm=FakeSlurm([external_node("a")]),
    ).run()  # fmt: skip
    assert [world.taints(name) for name in ("a", "b")] == [(softer, OWN), (theirs,)]


def test_a_removed_taint_is_added_again() -> None:
    world = World(kube(wanted=False), slurm=FakeSlurm([external_node("a")]))
    world.run(lambda: world.cluster.put(kube(wanted=False)))
    assert world.taints() == (OWN,)


class Refusing(MemoryCluster):
    """Answers the first writes of taints with errors."""

    errors: deque[Exception]
    asked = 0

    async def set_taints(self, node: Node, taints: Any) -> Node:
        self.asked += 1
        if self.errors:
            raise self.errors.popleft()
        return await super().set_taints(node, taints)


@pytest.mark.parametrize("error", [Conflict, Forbidden])
def test_a_failed_write_of_a_taint_is_retried(error: type[Exception]) -> None:
    cluster = Refusing([kube(wanted=False)])
    cluster.errors = deque([error("no"), error("no")])
    world = World(slurm=FakeSlurm([external_node("a")]), cluster=cluster).run()
    assert world.taints() == (OWN,)
    assert cluster.asked == 3


# ---------------------------------------------------------------------- external nodes


def test_a_labelled_node_is_created_tainted_and_marked_as_ours() -> None:
    world = World(
        kube(cpu="7910m", memory="32Gi", partitions=" gpu, slurm-bridge ,", topology="default:s2", nvidia_com_gpu="2"),
        slurm=FakeSlurm(partitions=("slurm-bridge", "gpu")),
    ).run()
    assert world.done("create_node") == [
        "NodeName=a Sockets=1 CoresPerSocket=7 ThreadsPerCore=1 CPUs=7 RealMemory=32768 State=External "
        "Feature=slurm-bridge,gpu Gres=gpu:2 GresConf=count=2,name=gpu,file=gpu-0,file=gpu-1 Topology=default:s2"
    ]
    assert world.in_slurm().partitions == ("slurm-bridge", "gpu")
    assert world.in_slurm().comment == MARK
    assert world.taints() == (OWN,)
    assert world.reported == []


def test_the_address_of_a_node_is_configured_or_its_own() -> None:
    made = kube()
    addresses = (NodeAddress(type="Hostname", address="a"), NodeAddress(type="InternalIP", address="10.1.2.3"))
    made = replace(made, status=replace(made.status, addresses=addresses))
    wrong = replace(
        made, status=replace(made.status, addresses=(NodeAddress(type="InternalIP", address="1.2.3.4 State=Down"),))
    )
    rules, there = NodeRules(), ("slurm-bridge",)
    assert external(made, rules, there).conf.endswith(" NodeAddr=10.1.2.3")
    assert external(made, NodeRules(address="127.0.0.1"), there).conf.endswith(" NodeAddr=127.0.0.1")
    assert "NodeAddr" not in external(wrong, rules, there).conf
    assert "NodeAddr" not in external(kube(), rules, there).conf


def test_a_cordoned_node_is_made_drained() -> None:
    world = World(kube(cordoned=True)).run()
    assert (world.in_slurm().drained, world.in_slurm().comment) == (True, MARK)
    world.run(lambda: world.put(kube()))
    assert not world.in_slurm().drained


def test_a_node_that_is_right_is_left_as_it_is() -> None:
    world = World(kube()).run()
    calls = len(world.slurm.calls)
    World(slurm=world.slurm, cluster=world.cluster).run(passes=5)
    assert len(world.slurm.calls) == calls


def test_differences_that_slurm_can_update_are_updated() -> None:
    world = World(kube(topology="default:s1")).run()
    world.run(lambda: world.put(kube(topology="default:s2")), lambda: world.put(kube()))
    assert len(world.done("create_node")) == 1
    assert [about[1]["topology"] for about in world.done("update_node") if "topology" in about[1]] == ["default:s2", ""]
    assert world.in_slurm().topology == ""


@pytest.mark.parametrize(
    ("changed", "field", "value"),
    [
        ({"cpu": "16"}, "cpus", 16),
        ({"memory": "64000Mi"}, "memory_mib", 64000),
        ({"memory": "31999Mi"}, "memory_mib", 31999),
        ({"nvidia_com_gpu": "4"}, "gres", "gpu:4"),
        ({"partitions": "more"}, "partitions", ("slurm-bridge", "more")),
    ],
)
def test_a_node_that_slurm_cannot_update_is_recreated_once_it_has_no_job(
    changed: dict[str, str], field: str, value: object
) -> None:
    slurm = FakeSlurm(partitions=("slurm-bridge", "more"))
    world = World(kube(), slurm=slurm).run()
    held = slurm.hold("a")
    seen = []

    def ends() -> None:
        seen.append(world.in_slurm())
        slurm.end(held)

    world.run(lambda: world.put(kube(**changed)), ends)  # type: ignore[arg-type]
    assert seen[0].drained
    assert seen[0].reason.startswith("slurm-bridge: to be replaced: ")
    assert len(world.done("delete_node")) == 1
    assert not world.in_slurm().drained
    assert getattr(world.in_slurm(), field) == value
    assert world.in_slurm().comment == MARK
    assert world.taints() == (OWN,)


def test_a_reverted_change_ends_the_drain() -> None:
    world = World(kube()).run()
    held = world.slurm.hold("a")
    world.run(lambda: world.put(kube(cpu="16")), lambda: world.put(kube()))
    assert not world.in_slurm().drained
    assert world.done("delete_node") == []
    world.slurm.end(held)


def test_a_small_difference_of_memory_changes_nothing() -> None:
    world = World(kube(memory="32000Mi")).run()
    world.run(lambda: world.put(kube(memory="32100Mi")))
    assert len(world.done("create_node")) == 1


def test_features_of_other_owners_survive_a_recreation() -> None:
    world = World(kube()).run()
    world.slurm.set_node("a", features=("slurm-bridge", "fast", "odd|one"))
    world.run(lambda: world.put(kube(cpu="16")))
    assert len(world.done("create_node")) == 2
    assert world.in_slurm().features == ("slurm-bridge", "fast")


def test_a_node_that_another_user_drained_is_not_recreated() -> None:
    world = World(kube()).run()
    world.slurm.set_node("a", states=frozenset({"IDLE", "EXTERNAL", "DRAIN"}), reason="disk broken")
    world.run(lambda: world.put(kube(cpu="16")))
    assert world.done("delete_node") == []
    assert world.in_slurm().reason == "disk broken"


@pytest.mark.parametrize("how", ["label", "node", "name"])
def test_an_unwanted_node_is_drained_and_deleted_once_it_has_no_job(how: str) -> None:
    world = World(kube()).run()
    held = world.slurm.hold("a")
    seen = []

    def take_away() -> None:
        if how == "node":
            world.gone()
        else:
            world.put(kube(wanted=how != "label", called="b" if how == "name" else None))

    def ends() -> None:
        seen.append((world.in_slurm(), world.taints() if how == "label" else None))
        world.slurm.end(held)

    world.run(take_away, ends)
    assert seen[0][0].drained
    assert seen[0][1] in (None, (OWN,)), "only Slurm's pods fit on it while Slurm has it"
    assert world.in_slurm() is None
    if how == "label":
        assert world.taints() == ()
    if how == "name":
        assert world.in_slurm("b") is not None


def test_a_label_that_comes_back_ends_the_removal() -> None:
    world = World(kube()).run()
    held = world.slurm.hold("a")
    world.run(lambda: world.put(kube(wanted=False)), lambda: world.put(kube()))
    assert not world.in_slurm().drained
    world.slurm.end(held)


def test_a_node_that_was_deleted_while_no_replica_ran_is_deleted_in_slurm() -> None:
    assert World(slurm=FakeSlurm([ours()])).run().in_slurm() is None


def test_a_removal_by_the_original_slurm_bridge_is_completed() -> None:
    slurm = FakeSlurm([external_node("a")])
    reason = "slurm-bridge: slurm-bridge: removing external node a"
    slurm.set_node("a", states=frozenset({"IDLE", "EXTERNAL", "DRAIN"}), reason=reason)
    assert World(kube(wanted=False), slurm=slurm).run().in_slurm() is None


@pytest.mark.parametrize("wanted", [True, False, None])
def test_nodes_of_other_owners_are_never_deleted_or_recreated(wanted: bool | None) -> None:
    elsewhere = mark_of("elsewhere")
    slurm = FakeSlurm([external_node("a", 4, comment=elsewhere)])
    world = World(*([kube(wanted=wanted, cordoned=True)] if wanted is not None else []), slurm=slurm).run()
    assert slurm.calls == []
    assert slurm.nodes_by_name["a"].comment == elsewhere
    if wanted is not None:
        assert world.taints() == ()
    assert [name for name, _ in world.reported] == (["a"] if wanted else [])


@pytest.mark.parametrize("wanted", [False, None])
def test_an_unmarked_external_node_is_not_deleted(wanted: bool | None) -> None:
    slurm = FakeSlurm([external_node("a")])
    World(*([kube(wanted=wanted)] if wanted is not None else []), slurm=slurm).run()
    assert slurm.calls == []


def test_an_external_node_that_was_there_before_becomes_ours() -> None:
    world = World(kube(), slurm=FakeSlurm([external_node("a")])).run()
    assert world.in_slurm().comment == MARK
    assert world.done("create_node") == []


def test_a_node_with_a_slurmd_is_not_made_external_but_followed() -> None:
    slurm = FakeSlurm([external_node("a", 4, states=frozenset({"IDLE"}))])
    world = World(kube(cordoned=True), slurm=slurm).run()
    assert [method for method, _ in slurm.calls] == ["update_node"]
    assert world.in_slurm().drained
    assert world.taints() == (OWN,)
    assert len(world.reported) == 1
    assert "has a slurmd" in world.reported[0][1]


def test_of_two_nodes_with_one_name_the_older_is_used_and_the_other_gets_an_event() -> None:
    first = kube("z", called="n1")
    first = replace(first, metadata=replace(first.metadata, creation_timestamp="2026-01-01T00:00:00Z"))
    second = kube("b", called="n1", cordoned=True)
    second = replace(second, metadata=replace(second.metadata, creation_timestamp="2026-01-02T00:00:00Z"))
    world = World(first, second).run()
    assert not world.in_slurm("n1").drained
    assert [world.taints(name) for name in ("z", "b")] == [(OWN,), ()]
    assert [name for name, _ in world.reported] == ["b"]
    assert "already belongs to node z" in world.reported[0][1]


def test_an_unreadable_kubernetes_node_removes_nothing() -> None:
    cordoned = kube(wanted=False, cordoned=True, taints=())
    world = World(replace(cordoned, unreadable="metadata.labels"), slurm=FakeSlurm([ours(), ours("b")])).run()
    assert world.slurm.calls == []
    assert world.taints() == ()


# ---------------------------------------------------------------------- faults


def test_a_missing_partition_is_reported_once_and_not_requested() -> None:
    world = World(kube(partitions="nope")).run(passes=6)
    assert world.slurm.calls == []
    assert len(world.reported) == 1
    assert "Slurm has no partition nope" in world.reported[0][1]
    world.run(lambda: world.slurm.partition_names.append("nope"))
    assert world.in_slurm().partitions == ("slurm-bridge", "nope")


def test_a_node_without_a_partition_gets_an_event_with_the_remedy() -> None:
    slurm = FakeSlurm([ours(partitions=())])
    world = World(kube(), slurm=slurm).run()
    assert len(world.reported) == 1
    assert "NodeSet=slurm-bridge Feature=slurm-bridge" in world.reported[0][1]
    assert slurm.calls == []


def test_a_rejection_by_slurm_is_reported_once_per_node_and_retried_with_backoff() -> None:
    world = World(kube(topology="nope:s1"))
    world.settings = NodeSettings(cluster="here", period=0.001, again=3600, rest=0)
    world.run(passes=1)
    slurm = world.slurm
    assert len(world.reported) == 1
    assert "topology" in world.reported[0][1]
    assert slurm.calls[0][0] == "create_node"
    assert world.taints() == ()
    asked = len(slurm.calls)
    assert world.controller is not None
    (problem,) = world.controller._problems.values()
    assert problem.due > 3000
    assert asked == 1


def test_with_an_invalid_annotation_no_node_is_removed_and_cordons_still_drain() -> None:
    world = World(kube()).run()
    world.run(lambda: world.put(kube(partitions="nope", cordoned=True)))
    assert world.done("delete_node") == []
    assert world.in_slurm().reason == "slurm-bridge: Kubernetes node a is unschedulable"
    assert world.taints() == (OWN,)


def test_a_node_that_could_not_be_recreated_stays_tainted() -> None:
    world = World(kube()).run()
    world.settings = NodeSettings(cluster="here", period=3600, again=3600, rest=0)
    world.slurm.fails["create_node"] = deque([SlurmError("POST new/node", -1, "Unspecified error")])
    world.run(lambda: world.put(kube(cpu="16")), passes=1)
    assert world.in_slurm() is None
    assert world.taints() == (OWN,)
    assert len(world.reported) == 1
    again = World(slurm=world.slurm, cluster=world.cluster).run()
    assert again.in_slurm().cpus == 16


def test_a_problem_is_forgotten_when_the_node_changes() -> None:
    world = World(kube(topology="nope:s1"))
    world.settings = NodeSettings(cluster="here", period=3600, again=3600, rest=0)
    world.run(lambda: world.put(kube(topology="default:s1")), passes=1)
    assert world.in_slurm().topology == "default:s1"


@pytest.mark.parametrize(
    "error", [UnavailableError("GET nodes", "no connection", sent=False), TokenError("/token", "is empty")]
)
def test_while_slurm_does_not_answer_nothing_changes(error: Exception) -> None:
    slurm = FakeSlurm([ours()])
    slurm.fails["nodes"] = deque([error, error])
    slurm.fails["partitions"] = deque([error])
    world = World(kube(wanted=False, taints=(OWN,)), slurm=slurm).run()
    assert slurm.reads["nodes"] >= 4
    assert world.in_slurm() is None
    assert world.reported == []


@pytest.mark.parametrize("method", ["create_node", "update_node", "delete_node"])
def test_a_lost_response_does_no_harm(method: str) -> None:
    slurm = FakeSlurm()
    world = World(kube(), slurm=slurm)
    if method == "create_node":
        slurm.loses.append(method)
    world.run()
    if method != "create_node":
        slurm.loses.append(method)
        world.run(lambda: world.put(kube(cpu="16")))
    assert slurm.loses == []
    assert world.in_slurm().comment == MARK
    assert not world.in_slurm().drained
    assert world.reported == []
    assert world.taints() == (OWN,)


def test_a_node_that_slurm_rejects_does_not_block_others() -> None:
    slurm = FakeSlurm()
    slurm.fails["create_node"] = deque([SlurmError("POST new/node", -1, "Unspecified error")])
    world = World(kube("a"), kube("b"), slurm=slurm).run()
    assert {name for name in ("a", "b") if world.in_slurm(name)} == {"a", "b"}
    assert len(world.reported) == 1


def test_a_replica_that_does_not_lead_sends_no_requests() -> None:
    world = World(kube())
    world.elected = False

    async def serve() -> None:
        runtime = Runtime(lambda *_: None, lambda: world.elected, world.cluster)
        controller = controller_of(world, runtime)
        task = asyncio.ensure_future(controller.run())
        async with asyncio.timeout(10):
            while controller._nodes is None:  # noqa: ASYNC110 (no event to wait for)
                await asyncio.sleep(0.002)
        await asyncio.sleep(0.05)
        assert (world.slurm.reads, world.slurm.calls) == ({}, [])
        world.elected = True
        async with asyncio.timeout(10):
            while not controller.passes:  # noqa: ASYNC110 (no event to wait for)
                await asyncio.sleep(0.002)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(serve())
    assert world.in_slurm() is not None


class Deposing(FakeSlurm):
    """Another replica becomes the leader after the first node was created."""

    world: World

    async def create_node(self, conf: str) -> None:
        await super().create_node(conf)
        self.world.elected = False


def test_a_replica_that_no_longer_leads_stops_at_once() -> None:
    slurm = Deposing()
    slurm.world = world = World(kube(), slurm=slurm)
    world.run(passes=1)
    assert [method for method, _ in slurm.calls] == ["create_node"]
    assert world.taints() == ()


def test_frequent_updates_by_kubelets_do_not_start_a_round() -> None:
    world = World(kube())
    world.settings = NodeSettings(cluster="here", period=3600, again=3600, rest=0)

    async def serve() -> None:
        runtime = Runtime(lambda *_: None, lambda: True, world.cluster)
        world.controller = controller_of(world, runtime)
        task = asyncio.ensure_future(world.controller.run())
        await world._looked(2)  # once for the creation, once for the taint
        there = world.node()
        assert there is not None
        for number in range(5):
            world.cluster.put(replace(there, status=replace(there.status, declared_features=(str(number),))))
            await asyncio.sleep(0)
        passes = world.controller.passes
        world.put(kube(cordoned=True))
        await world._looked(1)
        assert world.controller.passes == passes + 1
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(serve())
    assert world.in_slurm().drained


@pytest.mark.parametrize("kept", [True, False])
def test_the_plugin_synchronizes_nodes_unless_it_is_configured_otherwise(
    kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = FakeSlurm()
    monkeypatch.setattr("fluence_plugins.slurm_bridge.plugin.SlurmClient", lambda _: slurm)
    cluster = MemoryCluster([kube()])
    values: dict[str, Any] = {
        "url": "https://none",
        "token_file": "none",
        "cluster": "here",
        "nodes": kept,
        "node_address": "127.0.0.1",
    }
    plugin = SlurmBridgePlugin(SlurmBridgeArguments(**values))

    async def serve() -> None:
        async with plugin.serve(Runtime(lambda *_: None, lambda: True, cluster)), asyncio.timeout(10):
            while not (slurm.nodes_by_name if kept else slurm.reads):  # noqa: ASYNC110 (no event to wait for)
                await asyncio.sleep(0.002)

    asyncio.run(serve())
    assert [one.address for one in slurm.nodes_by_name.values()] == (["127.0.0.1"] if kept else [])
    assert ("partitions" in slurm.reads) == kept


# ---------------------------------------------------------------------- values that users write


@pytest.mark.parametrize(
    "name", ["DEFAULT", "default", "all", "localhost", "a b", "a\nState=DOWN", "a[0-3]", "-a", "a" * 254]
)
def test_a_name_with_a_special_meaning_in_slurm_is_rejected(name: str) -> None:
    with pytest.raises(ValueError, match="slurm-nodename"):
        slurm_name(kube(called=name))


_WRITTEN = st.text(st.sampled_from("aZ0.-_:,= \t\n\"'\\#;|&()[]{}*+äDEFAULT"), max_size=12) | st.text(max_size=12)


@given(st.text("ab.-_ =\n,[DEFAULT", max_size=8) | _WRITTEN, _WRITTEN, _WRITTEN)
def test_no_value_of_a_user_can_add_options_to_the_configuration_line(
    called: str, partitions: str, topology: str
) -> None:
    written = kube(called=called, partitions=partitions, topology=topology, nvidia_com_gpu="1")
    there = ["slurm-bridge", *(part.strip() for part in partitions.split(","))]
    try:
        conf = external(written, NodeRules(), there).conf
    except ValueError:
        return
    options = [word.partition("=")[0] for word in conf.split(" ")]
    assert conf.isprintable()
    assert conf.isascii()
    sockets = ["Sockets", "CoresPerSocket", "ThreadsPerCore", "CPUs"]
    end = ["Topology"] if topology.strip() else []
    assert options == ["NodeName", *sockets, "RealMemory", "State", "Feature", "Gres", "GresConf", *end]
    assert " State=External Feature=slurm-bridge" in conf


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (kube(partitions="a b"), "not a valid partition name"),
        (kube(partitions="x=1"), "not a valid partition name"),
        (kube(topology="default:s1 State=DOWN"), "not a valid topology of Slurm"),
        (kube(topology="default"), "not a valid topology of Slurm"),
        (kube(cpu="500m"), "0 whole allocatable CPUs"),
        (kube(memory="many"), r"status\.allocatable\[memory\]"),
        (kube(nvidia_com_gpu="5000"), "exceed the limit of 4096"),
    ],
)
def test_invalid_values_are_reported_with_a_remedy(made: Node, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        external(made, NodeRules(), ("slurm-bridge", "a b", "x=1"))


def test_devices_of_one_kind_are_added_up_and_of_two_kinds_refused() -> None:
    made = kube()
    both = {**made.status.allocatable, "nvidia.com/gpu": "2", "amd.com/gpu": "1"}
    made = replace(made, status=replace(made.status, allocatable=both))
    assert external(made, NodeRules(), ("slurm-bridge",)).gres == "gpu:3"
    rules = NodeRules(resources=(("nvidia.com/gpu", "gpu:v100"), ("amd.com/gpu", "gpu:mi300")))
    with pytest.raises(ValueError, match="only one kind of device, but this one has"):
        external(made, rules, ("slurm-bridge",))
    single = external(made, NodeRules(resources=(("nvidia.com/gpu", "gpu:v100"),)), ("slurm-bridge",))
    assert (single.gres, single.gres_conf) == ("gpu:v100:2", "count=2,name=gpu,type=v100,file=gpu-0,file=gpu-1")


_STATES = st.frozensets(st.sampled_from(["IDLE", "ALLOCATED", "MIXED", "EXTERNAL", "DRAIN", "DOWN", "COMPLETING"]))
_FOUND = st.builds(
    lambda states, reason, comment, cpus: external_node("a", cpus, states=states, reason=reason, comment=comment),
    _STATES, st.sampled_from(["", "slurm-bridge: x", "theirs"]), st.sampled_from(["", MARK, mark_of("b"), "note"]),
    st.sampled_from([8, 9]),
)  # fmt: skip
_KUBE = st.none() | st.builds(
    lambda wanted, cordoned: kube(wanted=wanted, cordoned=cordoned), st.booleans(), st.booleans()
)


@given(_KUBE, _FOUND)
def test_nodes_with_jobs_or_of_other_owners_are_never_deleted_and_other_drains_never_removed(
    made: Node | None, found: Any
) -> None:
    wanted = made is not None and EXTERNAL_NODE_LABEL in made.metadata.labels
    spec = external(made, NodeRules(), ("slurm-bridge",)) if made is not None and wanted else None
    try:
        todo = steps(made, found, spec, mark=MARK, partitions=("slurm-bridge",))
    except ValueError:
        return
    done = [type(step).__name__ for step in todo]
    foreign = found.comment == mark_of("b")
    if foreign:
        assert done == []
    if "Delete" in done:
        assert not found.states & {"ALLOCATED", "MIXED", "COMPLETING"}
        assert "EXTERNAL" in found.states
        assert wanted or found.comment == MARK
        assert found.drained or done[0] == "Drain"
    if "Undrain" in done:
        assert found.reason.startswith("slurm-bridge:")
    if "Drain" in done and done.count("Drain") == 1 and "Create" not in done:
        assert not found.drained
