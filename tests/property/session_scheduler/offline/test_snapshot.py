"""On any cluster: a saved snapshot round-trips and gives the same decisions, and `explain` changes none of them."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from session_scheduler.config.settings import PluginConfig, Profile, SchedulerConfig
from session_scheduler.engine.explain import explain_pending
from session_scheduler.engine.scheduler import KINDS
from session_scheduler.offline.simulate import place_all, simulate_state
from session_scheduler.offline.snapshot import snapshot
from session_scheduler.offline.state import ClusterState, open_state, read_state
from session_scheduler.testing import FakeCluster

from ....tools.examples import examples
from ..worlds import nodes, pods


@settings(max_examples=examples(30))
@given(nodes(), st.lists(pods(), max_size=1), st.integers(0, 2**64 - 1), st.booleans())
def test_a_snapshot_equals_its_state(some_nodes, some_pods, seed, yaml):
    cluster = FakeCluster()
    cluster.add(some_nodes, *some_pods)
    state = ClusterState(tuple(obj for kind in KINDS for obj in cluster.memory.objects(kind)))
    profile = Profile(plugins=(PluginConfig(name="fluence", enabled=False),))
    config = SchedulerConfig(seed=seed, profiles=(profile,))
    text = snapshot(state, config, yaml=yaml)

    async def decided():
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / ("s.yaml" if yaml else "s.json")
            file.write_text(text)
            read = await read_state([str(file)])
        assert {(type(o), o.key): o for o in read.objects} == {(type(o), o.key): o for o in state.objects}
        assert snapshot(read, read.config(), yaml=yaml) == text
        asked = await open_state(read, read.config())
        explain_pending(asked)
        return await simulate_state(state, config), await simulate_state(read, read.config()), await place_all(asked)

    before, after, asked = asyncio.run(decided())
    assert before == after == asked
