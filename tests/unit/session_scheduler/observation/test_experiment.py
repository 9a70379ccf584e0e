"""Experiments: each change returns another one; equal ones decide equally."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from session_scheduler import NodeInfo, Session, hookimpl
from session_scheduler.config.settings import QueueConfig, SchedulerConfig
from session_scheduler.errors import InputError
from session_scheduler.model.groups import Group, Task
from session_scheduler.observation.experiment import Experiment, of_objects, read
from session_scheduler.offline.snapshot import write_snapshot
from session_scheduler.registry.registry import Registry
from session_scheduler.testing import node, pod


class Even:
    """Rejects nodes with an odd number."""

    name = "Even"

    def __init__(self, args: Any = None) -> None:
        self.args = args

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        def check(_: Task, __: Group, node: NodeInfo) -> str | None:
            return "node(s) were odd" if int(node.name[1:]) % 2 else None

        session.add_predicate(check)


async def placed(experiment: Experiment) -> dict[str, str | None]:
    result, _ = await experiment.run()
    return {one["name"]: one["node"] for one in result["pods"]}


async def test_pods_are_decided_in_the_order_of_the_objects() -> None:
    experiment = of_objects(node("n1", cpu=2), *(pod(f"p{number}", cpu=1) for number in (3, 1, 2)))
    assert await placed(experiment) == {"p1": "n1", "p2": None, "p3": "n1"}
    assert await placed(experiment) == await placed(experiment)


async def test_each_change_returns_another_experiment() -> None:
    base = of_objects(node("n1", cpu=1), pod("a", cpu=1), pod("b", cpu=1))
    assert set((await placed(base.with_nodes("1xn1"))).values()) == {"n1", "n1-added-1"}
    assert await placed(base.with_objects(node("n1", cpu=2))) == {"a": "n1", "b": "n1"}
    assert await placed(base.with_objects(pod("b", cpu="100m"))) == {"a": "n1", "b": None}
    limited = base.with_config(SchedulerConfig()).with_queue(QueueConfig(name="default", limit={"cpu": "500m"}))
    assert await placed(limited) == {"a": None, "b": None}
    assert await placed(base) == {"a": "n1", "b": None}


async def test_a_plugin_of_this_process_belongs_to_its_experiment_only() -> None:
    base = of_objects(node("n1"), node("n2", cpu="200m"), pod("a", cpu="200m"))
    changed = base.with_plugin("Even", Even)
    assert await placed(changed) == {"a": "n2"}
    assert await placed(changed.without_plugin("Even")) == await placed(base)
    assert "Even" not in {plugin.name for plugin in Registry({}).installed()}
    observer = await changed.observer()
    assert isinstance(observer.plugin("Even"), Even)


async def test_an_installed_plugin_gets_arguments() -> None:
    strategy = {"type": "MostAllocated", "resources": [{"name": "cpu", "weight": 1}]}
    base = of_objects(node("n1", cpu=8), node("n2", cpu=2), pod("a", cpu=1))
    packed = base.with_plugin("NodeResourcesFit", args={"scoringStrategy": strategy}, weight=100)
    assert (await placed(base), await placed(packed)) == ({"a": "n1"}, {"a": "n2"})


@pytest.fixture
def manifests(tmp_path: Path) -> str:
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\nstatus: {allocatable: {cpu: '4', memory: 8Gi, pods: '10'}}\n"
        "---\napiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {schedulerName: fluence, containers: [{name: c}]}\n"
    )
    return str(file)


async def test_manifests_have_the_default_configuration(manifests: str) -> None:
    experiment = await read([manifests])
    assert experiment.source.endswith("cluster.yaml")
    assert experiment.config == SchedulerConfig()
    assert await placed(experiment) == {"a": "n1"}


async def test_a_snapshot_brings_its_configuration(manifests: str, tmp_path: Path) -> None:
    limited = SchedulerConfig(queues=(QueueConfig(name="default", limit={"pods": 0}),))
    write_snapshot((await read([manifests])).state, limited, tmp_path / "now.yaml")
    experiment = await read([str(tmp_path / "now.yaml")])
    assert experiment.config.queues == limited.queues
    assert await placed(experiment) == {"a": None}
    assert (await read([str(tmp_path / "now.yaml")], config=SchedulerConfig())).config == SchedulerConfig()


def test_an_unknown_plugin_is_an_error() -> None:
    with pytest.raises(InputError, match="no profile enables this plugin; did you mean NodePorts"):
        of_objects().without_plugin("NodePort")
