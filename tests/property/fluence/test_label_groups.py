"""A group by label gets the placement of a PodGroup with the same pods and size."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fluence_plugins.fluence.arguments import FluenceArguments
from fluence_plugins.fluence.plugin import FluencePlugin
from session_scheduler.testing import FakeCluster, node, pod, pod_group

from ...tools.examples import examples

PREFIX = "fluence.flux-framework.org/"
hosts = st.lists(st.integers(1, 4), min_size=1, max_size=3)
"""The cores of each node."""
groups = st.lists(
    st.tuples(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.integers(1, 5)), min_size=1, max_size=3
)
"""The cores of each member, and the minimum that starts together."""


def placed(cores: list[int], wanted: Any, *, labelled: bool, made: bool = False) -> dict[str, str | None]:
    cluster = FakeCluster(checked=False)
    cluster.add(node(f"n{i}", cpu=str(number)) for i, number in enumerate(cores))
    names = []
    for g, (members, size) in enumerate(wanted):
        if not labelled:
            cluster.add(pod_group(f"g{g}", size))
        for i, cpu in enumerate(members):
            names.append(f"p{g}-{i}")
            metadata = {"labels": {PREFIX + "group": f"g{g}"}, "annotations": {PREFIX + "group-size": str(size)}}
            cluster.add(pod(names[-1], cpu=str(cpu), priority=9 - g, **(metadata if labelled else {"group": f"g{g}"})))
    cluster.run(FluencePlugin(FluenceArguments(make_pod_groups=made)))
    return {name: cluster.node_of(name) for name in names}


@settings(max_examples=examples(25), deadline=None, derandomize=True)
@given(hosts, groups, st.booleans())
def test_groups_by_label_are_placed_like_podgroups(cores: list[int], wanted: Any, made: bool) -> None:
    by_label = placed(cores, wanted, labelled=True, made=made)
    assert by_label == placed(cores, wanted, labelled=False)
    for g, (members, size) in enumerate(wanted):
        started = sum(by_label[f"p{g}-{i}"] is not None for i in range(len(members)))
        assert started == 0 or started >= size
