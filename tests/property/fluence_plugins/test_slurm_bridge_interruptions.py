"""A hook of slurm-bridge that takes too long is interrupted before it has changed anything, or not at all."""

from __future__ import annotations

import pytest

from fluence_plugins.slurm_bridge.names import NODE_NAME_LABEL
from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.testing import gang, node, pod

from ...tools.interrupting import Moment, Run, time_over_at
from ...unit.fluence_plugins.slurm_bridge.test_plugin import World


def scenario(at: Moment | None, patch: pytest.MonkeyPatch) -> Run:
    """A pod requests a job, a gang has one, a node is renamed, another is removed, and a pod preempts."""
    world = World()
    world.config = SchedulerConfig(bindings_in_flight=1_000, hook_seconds=5)
    bridging, tracked = world.bridging, dict[str, tuple[str, ...]]()
    bridging._bridge.track = lambda group, uids: tracked.update({group: tuple(uids)})  # type: ignore[method-assign]

    def state() -> str:
        plugin = bridging
        maps = (plugin._names, plugin._nodes, plugin._requested, plugin._candidates, tracked)
        return repr((*maps, sorted(plugin._removed), world.wants))

    world.start()
    world.add(pod("p"), pod("low", cpu="8"), *gang("g", 2))
    world.stand(7, ("n1", "n2"), "g-0", "g-1")
    world.stand(8, ("n3",), "low")
    with time_over_at(at, "fluence_plugins.slurm_bridge", "slurm-bridge", state, patch) as run:
        world.run()
        world.remove_node("n4").add(node("n1", labels={NODE_NAME_LABEL: "other"}), pod("high", cpu="8", priority=9))
        world.advance(60)
        world.run()
    return run


def test_an_interruption_at_any_line_leaves_the_state_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    run = scenario(None, monkeypatch)
    assert not run.interrupted
    interrupted = {hook for moment in sorted(run.moments) for hook in scenario(moment, monkeypatch).interrupted}
    assert interrupted >= {"on_nodes_changed", "on_session_open", "place_group"}
