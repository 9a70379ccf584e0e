"""The victims equal those of a simple search: remove all candidates, then restore them, the most important first."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tools.real_engine import embedded_only

from fluence_plugins.fluence.arguments import FluenceArguments
from fluence_plugins.fluence.plugin import FluencePlugin
from session_scheduler.actions.trial import Trial
from session_scheduler.builtin import default_preemption
from session_scheduler.model.objects import KubeObject, Pod
from session_scheduler.model.units import Unit
from session_scheduler.testing import FakeCluster, gang, node, pod

from ...tools.examples import examples

QPU = "fluxion.flux-framework.org/qpu"
RESOURCES = "resources:\n  - {type: qpu, name: a, count: 2}\n  - {type: qpu, name: b, count: 2}\n"
cpus = st.sampled_from(["300m", "900m", "1", "2"])
qpus = st.sampled_from([0, 0, 1, 2])
running = st.lists(st.tuples(cpus, qpus, st.integers(0, 4), st.booleans()), min_size=4, max_size=12)
"""The cpu, devices and priority, and whether the pod is terminating."""
worlds = st.tuples(
    st.integers(1, 4),
    running,
    st.tuples(cpus, qpus, st.integers(1, 3)),
    st.tuples(st.sampled_from(["first", "lonodex", "locality"]), st.sampled_from(["auto", "cores", "millicores"])),
)
"""Nodes, the running pods, the preemptors and their number, and the match policy."""


def all_away(trial: Trial, units: Sequence[Unit], _: int) -> Sequence[Unit]:
    for unit in units:
        trial.remove(unit.tasks)
    return units


def placed(trial: Trial, *, thorough: bool = False) -> bool:
    return trial.place(thorough=thorough) is not None


def one_by_one(trial: Trial, units: Sequence[Unit], fits: Callable[[Sequence[Unit]], bool]) -> list[Unit]:
    victims: list[Unit] = []
    for index, unit in enumerate(units):
        trial.put_back(unit.tasks)
        if not fits([*victims, *units[index + 1 :]]):
            trial.remove(unit.tasks)
            victims.append(unit)
    return victims


def asked(cpu: str, devices: int) -> dict[str, Any]:
    return {"cpu": cpu, "requests": {QPU: str(devices)}}


def victims(world: Any) -> tuple[set[str], dict[str, str]]:
    """The victims, and the nominated nodes."""
    nodes, there, (cpu, devices, count), (policy, counted) = world
    cluster = FakeCluster(checked=False)
    cluster.add(node(f"n{number}", cpu="3", offers={QPU: "8"}) for number in range(nodes))
    cluster.add(pod(f"low{n}", priority=at, **asked(c, d)) for n, (c, d, at, _) in enumerate(there))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "resources.yaml"
        file.write_text(RESOURCES)
        cluster.run(FluencePlugin(FluenceArguments(resources=str(file), match_policy=policy, cpu_accounting=counted)))
    for number, one in enumerate(there):
        if one[-1] and cluster.node_of(f"low{number}"):
            asyncio.run(cluster.memory.delete(cluster.find(Pod, f"low{number}")))
    come: list[KubeObject] = [pod("new-0", priority=10, **asked(cpu, devices))]
    if count > 1:
        come = list(gang("new", count, priority=10, **asked(cpu, devices)))
    cluster.add(come)
    cluster.run()
    pods = asyncio.run(cluster.memory.list(Pod)).items
    ending = {one.metadata.name for one in pods if one.metadata.deletion_timestamp}
    return ending, {one.metadata.name: one.status.nominated_node_name for one in pods}


@embedded_only  # the library orders equal hosts by earlier matches
@settings(max_examples=examples(120), deadline=None)
@given(worlds)
def test_fewer_dry_runs_choose_the_same_victims_and_nodes(world: Any) -> None:
    found = victims(world)
    with (
        patch.object(default_preemption, "_remove_enough", all_away),
        patch.object(default_preemption, "_reprieve", one_by_one),
        patch.object(Trial, "is_placeable", placed),
    ):
        assert found == victims(world)
