"""The fluence plugin on any cluster: gangs all-or-nothing, exact undo, and the fits of brute force."""

from __future__ import annotations

import asyncio
import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fluence_plugins.fluence.plugin import FluencePlugin
from fluxion_cy import NoSuchJob
from session_scheduler import Scope, hookimpl, register_plugin_builder
from session_scheduler.actions.placing import place_group
from session_scheduler.config.settings import PluginConfig, Profile, SchedulerConfig
from session_scheduler.engine.scheduler import Scheduler
from session_scheduler.framework.statement import PlacementResult
from session_scheduler.model.columns import BoolColumn, NodeView
from session_scheduler.offline.simulate import place_all
from session_scheduler.offline.state import open_state, read_state

from ...tools.examples import examples

RESOURCES = """
resources:
  - {type: qdevice, name: aurora, attributes: {region: east}, with: [{type: qpu, count: 2}]}
  - {type: qdevice, name: borealis, attributes: {region: west}, with: [{type: qpu}]}
"""
QUICK = settings(max_examples=examples(40), deadline=None, derandomize=True)

nodes = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=3)
"""The cores and GiB of each node."""
members = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(0, 2), st.sampled_from([0, 0, 80])),
    min_size=1,
    max_size=5,
)
"""The cores, GiB, qpus and host port of each pod."""


def cluster(
    hosts: list[tuple[int, int]], pods: list[tuple[int, int, int, int]], min_count: int
) -> list[dict[str, Any]]:
    objects: list[dict[str, Any]] = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": f"n{i}"},
            "status": {"allocatable": {"cpu": str(cores), "memory": f"{gib}Gi", "pods": "110"}},
        }
        for i, (cores, gib) in enumerate(hosts)
    ]
    objects.append(
        {
            "apiVersion": "scheduling.k8s.io/v1alpha2",
            "kind": "PodGroup",
            "metadata": {"name": "g"},
            "spec": {"schedulingPolicy": {"gang": {"minCount": min_count}}},
        }
    )
    for i, (cores, gib, qpus, port) in enumerate(pods):
        asked = {"cpu": str(cores), "memory": f"{gib}Gi"}
        limits = {"fluxion.flux-framework.org/qpu": str(qpus)} if qpus else {}
        container: dict[str, Any] = {"name": "c", "resources": {"requests": asked | limits, "limits": limits}}
        if port:
            container["ports"] = [{"containerPort": port, "hostPort": port}]
        spec = {"schedulerName": "fluence", "schedulingGroup": {"podGroupName": "g"}, "containers": [container]}
        objects.append({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"p{i}"}, "spec": spec})
    return objects


class Apart:
    """At most `most` pods on a node: a filter that `room` does not model, so that placements are released in part."""

    name = "apart"
    filter_scope = Scope.ANY

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.most = arguments["most"]

    @hookimpl
    def footprint(self) -> list[str]:
        return ["apart"]

    @hookimpl
    def filter(self, nodes: NodeView, mask: BoolColumn) -> None:
        mask &= nodes.counter("apart") < self.most


def opened(objects: list[dict[str, Any]], most: int = 0) -> Scheduler:
    with tempfile.TemporaryDirectory() as folder:
        resources, file = Path(folder) / "resources.yaml", Path(folder) / "objects.json"
        resources.write_text(RESOURCES)
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
        plugins = [PluginConfig(name="fluence", args={"resources": str(resources)})]
        if most:
            register_plugin_builder("apart", lambda arguments: Apart(arguments))
            plugins.append(PluginConfig(name="apart", args={"most": most}))
        config = SchedulerConfig(profiles=(Profile(plugins=tuple(plugins)),))
        return asyncio.run(open_state(asyncio.run(read_state([str(file)])), config))


def plugin_of(scheduler: Scheduler) -> FluencePlugin:
    found = scheduler.profiles["fluence"].instances["fluence"]
    assert isinstance(found, FluencePlugin)
    return found


def state(scheduler: Scheduler, jobs: int) -> tuple[Any, ...]:
    matcher = plugin_of(scheduler).live.matcher
    infos = []
    for jobid in range(1, jobs):
        try:
            infos.append(repr(matcher.info(jobid)))
        except NoSuchJob:
            infos.append("none")
    free = matcher.find("sched-now=free")
    phases = {task.key: (task.phase, task.node) for task in scheduler.cache.tasks.values()}
    return scheduler.cache.table.digest(), matcher.graph(), matcher.stat(), free, infos, phases


@QUICK
@given(nodes, members, st.data())
def test_discarding_a_statement_restores_everything(
    hosts: list[tuple[int, int]], pods: list[tuple[int, int, int, int]], data: st.DataObject
) -> None:
    scheduler = opened(cluster(hosts, pods, data.draw(st.integers(1, len(pods)))), data.draw(st.integers(0, 2)))
    group = scheduler.cache.pending_groups()[0]
    before = state(scheduler, 40)
    session = scheduler.sessions.open(scheduler.profiles["fluence"], (group,))
    with session.ledger.statement(group) as statement:
        place_group(session, statement, group, PlacementResult(group))
        placed = state(scheduler, 40)
        undone = statement.rollback()
        assert state(scheduler, 40) == before
        statement.redo(undone)
        assert state(scheduler, 40)[0] == placed[0]
        assert state(scheduler, 40)[3:] == placed[3:]
    assert state(scheduler, 40) == before
    assert plugin_of(scheduler).live.holdings.shares == {}


@QUICK
@given(nodes, members, st.data())
def test_a_gang_starts_exactly_if_brute_force_fits_it(
    hosts: list[tuple[int, int]], pods: list[tuple[int, int, int, int]], data: st.DataObject
) -> None:
    scheduler = opened(cluster(hosts, pods, len(pods)))
    result = asyncio.run(place_all(scheduler))
    assert result["summary"]["scheduled"] == (len(pods) if fits(hosts, pods) else 0)


def fits(hosts: list[tuple[int, int]], pods: list[tuple[int, int, int, int]]) -> bool:
    """Whether an assignment of pods to nodes and to trees of qpus exists."""
    return devices_fit([qpus for _, _, qpus, _ in pods if qpus]) and any(
        assignment_fits(hosts, pods, chosen) for chosen in itertools.product(range(len(hosts)), repeat=len(pods))
    )


def devices_fit(wanted: list[int]) -> bool:
    trees = (2, 1)
    return any(
        all(sum(n for n, t in zip(wanted, chosen, strict=True) if t == tree) <= size for tree, size in enumerate(trees))
        for chosen in itertools.product(range(2), repeat=len(wanted))
    )


def assignment_fits(
    hosts: list[tuple[int, int]], pods: list[tuple[int, int, int, int]], chosen: tuple[int, ...]
) -> bool:
    for index, (cores, gib) in enumerate(hosts):
        here = [pod for pod, node in zip(pods, chosen, strict=True) if node == index]
        ports = [pod[3] for pod in here if pod[3]]
        if sum(p[0] for p in here) > cores or sum(p[1] for p in here) > gib or len(ports) != len(set(ports)):
            return False
    return True
