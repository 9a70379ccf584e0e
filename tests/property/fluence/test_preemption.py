"""Preemption in the graph: the amounts of a host give the same answer as a match, whatever runs on it."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fluence_plugins.fluence.arguments import FluenceArguments
from fluence_plugins.fluence.matching.group_matcher import NoMatchError, place_on
from fluence_plugins.fluence.plugin import FluencePlugin
from session_scheduler import Event, Session, hookimpl
from session_scheduler.model.groups import Task
from session_scheduler.testing import FakeCluster, node, pod

from ...tools.examples import examples

GPU = "nvidia.com/gpu"
cpus = st.sampled_from(["100m", "500m", "900m", "1", "1500m", "2"])
memories = st.sampled_from(["1Mi", "700Mi", "1536Ki", "1Gi"])
gpus = st.sampled_from([0, 0, 1])
hosts = st.lists(st.tuples(st.sampled_from(["2", "3500m", "4"]), st.integers(1, 3), gpus), min_size=1, max_size=3)
"""The cpu, GiB and gpus of each node."""
ours = st.lists(st.tuples(cpus, memories, gpus, st.integers(0, 3)), max_size=8)
"""The cpu, memory, gpus and priority of the pods that the graph places."""
theirs = st.lists(st.tuples(st.integers(0, 2), cpus, memories, st.integers(0, 3)), max_size=8)
"""The node, cpu, memory and priority of foreign bound pods, even beyond a node's capacity."""
wanted = st.tuples(st.sampled_from(["300m", "1", "1500m", "2500m", "3", "4"]), memories, gpus)
counted = st.sampled_from(["auto", "cores", "millicores"])


class MatchesToo(FluencePlugin):
    """Compares its answer for each node with a match."""

    def __init__(self, arguments: FluenceArguments) -> None:
        super().__init__(arguments)
        self.wrong: list[tuple[str, str | None, str | None]] = []

    @hookimpl
    def reservable(
        self, session: Session, task: Task, nodes: Sequence[str], gone: Container[Task]
    ) -> list[str | None] | None:
        reasons = super().reservable(session, task, nodes, gone)
        for name, reason in zip(nodes, reasons or (), strict=True):
            found = self._matched(session, task, name, gone)
            if (found is None) is not (reason is None):
                self.wrong.append((name, reason, found))
        return reasons

    def _matched(self, session: Session, task: Task, name: str, gone: Container[Task]) -> str | None:
        away = [Event(one, name) for one in self._loads.tasks_on.get(name, ()) if one in gone]
        for event in away:
            self._removals.remove(event)
        self._removals.count_loads()
        self._nominated.hold_for_nominated(session, [task])
        rank = self.live.graph.host_ranks.get(name)
        try:
            if rank is None:
                return "no rank"
            place_on(self.live, task, self._requests[task.cls].shape, rank).undo()
        except NoMatchError as error:
            return str(error)
        else:
            return None
        finally:
            for event in away:
                self._removals.put_back(event)


@settings(max_examples=examples(200), deadline=None)
@given(hosts, ours, theirs, wanted, st.booleans(), st.sampled_from(["first", "hinode", "lonodex", "locality"]), counted)
def test_the_amounts_of_a_host_give_the_answer_of_the_graph(
    nodes: list[Any], graphs: list[Any], others: list[Any], new: Any, shrunk: bool, policy: str, cpu_accounting: Any
) -> None:
    cluster = FakeCluster(checked=False)
    plugin = MatchesToo(FluenceArguments(match_policy=policy, cpu_accounting=cpu_accounting))
    for index, (cpu, gib, count) in enumerate(nodes):
        cluster.add(node(f"n{index}", cpu=cpu, memory=f"{gib}Gi", offers={GPU: str(count)}))
    for index, (cpu, memory, count, priority) in enumerate(graphs):
        cluster.add(pod(f"our{index}", cpu=cpu, memory=memory, requests={GPU: str(count)}, priority=priority))
    cluster.run(plugin)
    for index, (place, cpu, memory, priority) in enumerate(others):
        where = f"n{place % len(nodes)}"
        cluster.add(pod(f"other{index}", cpu=cpu, memory=memory, priority=priority, scheduler="x", bound_to=where))
    if shrunk:
        cluster.add(node("n0", cpu="1", memory="1Gi"))
    cpu, memory, count = new
    cluster.add(pod(f"new{n}", cpu=cpu, memory=memory, requests={GPU: str(count)}, priority=4) for n in range(2))
    cluster.run()
    assert plugin.wrong == []
    assert "failed in" not in cluster.reasons("new0")
