"""Which bundled plugins the watchdog interrupts."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from fluence_plugins.fluence.arguments import FluenceArguments
from fluence_plugins.fluence.plugin import FluencePlugin
from session_scheduler.builtin import BUILTIN
from session_scheduler.registry.registry import CORE, GROUP
from session_scheduler.registry.validation import hook_calls
from session_scheduler.testing import FakeCluster, gang, pod

from ...tools.interrupting import ALWAYS, time_over_at

NEVER_INTERRUPTED = {"fluence"}
WITHOUT_STATE_IN_HOOKS = {"master-queue"}
"""Its controller runs in `serve`, beside the sessions."""
BEGIN_UPDATES = {"slurm-bridge"}
"""`tests/property/fluence_plugins/test_slurm_bridge_interruptions.py` interrupts it at each of its lines."""


def test_every_bundled_plugin_with_state_is_protected_from_interruptions() -> None:
    bundled = {entry.name for entry in metadata.entry_points(group=GROUP) if entry.dist and entry.dist.name == CORE}
    assert bundled == NEVER_INTERRUPTED | WITHOUT_STATE_IN_HOOKS | BEGIN_UPDATES


def test_the_graph_and_the_built_in_plugins_are_never_interrupted() -> None:
    plugins = {name: builder(None) for name, builder in BUILTIN.items()}
    plugins["fluence"] = FluencePlugin(FluenceArguments())
    calls = hook_calls([(name, plugin, None) for name, plugin in plugins.items()], 5.0)
    assert set(calls.budgets.values()) == {None}
    assert {call.budget for each in calls.hooks.values() for call in each} == {None}


def test_no_line_that_changes_the_graph_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a hook takes: the watchdog's handler runs at every line, while the plugin's time is over."""
    cluster = FakeCluster()
    cluster.use(FluencePlugin).nodes(3, cpu="2")
    with time_over_at(ALWAYS, "fluence_plugins.fluence", "fluence", str, monkeypatch) as run:
        cluster.add(pod("p"), pod("low", cpu="2", priority=0), *gang("g", 2)).schedule().assert_all_bound()
        cluster.pod("high", cpu="2", priority=9).node("n2", cpu="1").remove_node("n3")
        cluster.schedule().finish_deletions().advance(60).schedule()
    assert run.interrupted == []
    assert {Path(file).stem for _, file, _ in run.lines} >= {"plugin", "live_graph", "allocations", "holdings"}
