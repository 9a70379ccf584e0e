"""Nominated pods in the graph: no pod that must yield to one ever gets its resources."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fluence_plugins.fluence.arguments import FluenceArguments
from fluence_plugins.fluence.plugin import FluencePlugin
from session_scheduler.model.objects import Pod, PodStatus
from session_scheduler.testing import FakeCluster, gang, node, pod

from ...tools.examples import examples

QPU = "fluxion.flux-framework.org/qpu"
RESOURCES = """
resources:
  - {type: qpu, name: a, count: 2, attributes: {vendor: a}}
  - {type: qpu, name: b, count: 2, attributes: {vendor: b}}
"""
vendors = st.sampled_from([None, None, "a", "b"])
wants = st.tuples(st.sampled_from(["200m", "900m", "1500m", "2"]), st.integers(0, 2), vendors)
"""Cpu, devices and the vendor of the devices."""
worlds = st.tuples(
    st.integers(1, 3),
    st.lists(st.tuples(wants, st.integers(0, 1)), max_size=4),
    st.tuples(wants, st.integers(1, 3)),
    st.lists(st.tuples(wants, st.integers(1, 3), st.integers(1, 10)), min_size=1, max_size=4),
    st.tuples(st.sampled_from(["first", "lonodex", "locality"]), st.sampled_from(["auto", "cores", "millicores"])),
)
"""Nodes; the running pods, and whether each terminates; the nominated pod and its node; the new pods."""


def options(wanted: Any) -> dict[str, Any]:
    cpu, qpus, vendor = wanted
    annotations = {"fluence.flux-framework.org/require-vendor": vendor} if vendor and qpus else None
    return {"cpu": cpu, "requests": {QPU: str(qpus)}, "annotations": annotations}


def bound_there(world: Any, others: list[Any], folder: Path) -> bool:
    """Whether the nominated pod gets its node after the terminating pods are gone, if these others arrive before."""
    nodes, running, (wanted, where), _, (policy, counted) = world
    file = folder / "resources.yaml"
    file.write_text(RESOURCES)
    cluster = FakeCluster(checked=False)
    cluster.add(node(f"n{number}", cpu="3", offers={QPU: "8"}) for number in range(nodes))
    cluster.add(pod(f"runs{n}", priority=20, **options(of_it)) for n, (of_it, _) in enumerate(running))
    cluster.run(FluencePlugin(FluenceArguments(resources=str(file), match_policy=policy, cpu_accounting=counted)))
    for number, (_, ends) in enumerate(running):
        if ends and cluster.node_of(f"runs{number}") is not None:
            asyncio.run(cluster.memory.delete(cluster.find(Pod, f"runs{number}")))
    node_name = f"n{where % nodes}"
    waits = pod("waits", priority=10, gates=["later"], **options(wanted))
    cluster.add(replace(waits, status=PodStatus(nominated_node_name=node_name)))
    for number, (of_them, count, priority) in enumerate(others):
        made = gang(f"g{number}", count, priority=priority, preemption_policy="Never", **options(of_them))
        cluster.add(made)
    cluster.run()
    cluster.finish_deletions()
    cluster.advance(60)
    cluster.run()
    found = cluster.find(Pod, "waits")
    cluster.add(replace(found, spec=replace(found.spec, scheduling_gates=())))
    cluster.advance(60)
    cluster.run()
    return cluster.node_of("waits") == node_name


@settings(max_examples=examples(60), deadline=None)
@given(worlds)
def test_a_nominated_pod_gets_its_node_before_all_pods_that_must_yield(world: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert bound_there(world, world[3], Path(folder)) >= bound_there(world, [], Path(folder))
