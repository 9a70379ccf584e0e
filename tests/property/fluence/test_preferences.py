"""Preferences among devices refuse no pod, and what is preferred and free is taken."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from fluence_plugins.fluence.arguments import FluenceArguments
from fluence_plugins.fluence.plugin import FluencePlugin
from session_scheduler.testing import FakeCluster, node, pod, pod_group

from ...tools.examples import examples

PREFIX = "fluence.flux-framework.org/"
values = st.sampled_from(["a", "b", "c"])
attributes = st.fixed_dictionaries({}, optional={"region": values, "vendor": values})
devices = st.lists(st.tuples(attributes, st.integers(1, 2)), min_size=1, max_size=4)
"""Attributes and count of each tree of qpus."""
wishes = st.tuples(
    st.integers(1, 2),
    st.fixed_dictionaries({}, optional={"region": values}),
    st.fixed_dictionaries(
        {}, optional={"region": values, "vendor": values, "backend": st.sampled_from(["t0", "t01", "t1"])}
    ),
)
"""Qpus, what is required and what is preferred of each pod."""
QUICK = settings(max_examples=examples(25), deadline=None, derandomize=True)


def resources(trees: list[tuple[dict[str, str], int]]) -> str:
    lines = [
        f"- {{type: qpu, name: t{i}, count: {count}, attributes: {attributes}}}"
        for i, (attributes, count) in enumerate(trees)
    ]
    return "resources:\n" + "\n".join(lines).replace("'", "")


def member(name: str, wish: tuple[int, dict[str, str], dict[str, str]], *, prefers: bool, **more: Any) -> Any:
    count, required, preferred = wish
    annotations = {f"{PREFIX}require-{key}": value for key, value in required.items()}
    if prefers:
        annotations |= {f"{PREFIX}prefer-{key}": value for key, value in preferred.items()}
    return pod(name, requests={"fluxion.flux-framework.org/qpu": str(count)}, annotations=annotations, **more)


def placed(trees: Any, *objects: Any) -> FakeCluster:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "resources.yaml"
        file.write_text(resources(trees))
        cluster = FakeCluster(checked=False)
        cluster.add(node("n1", cpu="16", offers={"fluxion.flux-framework.org/qpu": "99"}), *objects)
        cluster.run(FluencePlugin(FluenceArguments(resources=str(file))))
    return cluster


TIGHT = ([({}, 1), ({}, 1), ({}, 2), ({"region": "a"}, 1)],
         [(1, {}, {}), (1, {}, {"region": "a"}), (1, {"region": "a"}, {}), (2, {}, {})])  # fmt: skip
"""All of it is taken, in one way: most orders of the gang's members fail."""


@QUICK
@given(devices, st.lists(wishes, min_size=1, max_size=4))
@example(*TIGHT)
def test_a_gang_that_is_placed_without_preferences_is_placed_with_them(trees: Any, wanted: Any) -> None:
    def whole(prefers: bool) -> bool:
        members = [member(f"p{i}", wish, prefers=prefers, group="g") for i, wish in enumerate(wanted)]
        cluster = placed(trees, pod_group("g", len(members)), *members)
        return all(cluster.node_of(one.metadata.name) for one in members)

    assert whole(True) >= whole(False)


@QUICK
@given(devices, st.lists(wishes, min_size=1, max_size=4))
def test_a_pod_is_placed_if_and_only_if_it_is_without_preferences(trees: Any, wanted: Any) -> None:
    """The last of some pods, that all but for it prefer the same."""
    before = [member(f"p{i}", wish, prefers=True, priority=9) for i, wish in enumerate(wanted[:-1])]
    there = [
        placed(trees, *before, member("last", wanted[-1], prefers=prefers)).node_of("last") for prefers in (True, False)
    ]
    assert there[0] == there[1]


@QUICK
@given(devices, st.lists(wishes, min_size=1, max_size=4))
def test_no_free_device_would_satisfy_more_preferences_than_the_one_that_was_taken(trees: Any, wanted: Any) -> None:
    """By one pod after the other, of one qpu each, against all that are free."""
    pods = [member(f"p{i}", (1, *wish[1:]), prefers=True, priority=9 - i) for i, wish in enumerate(wanted)]
    cluster = placed(trees, *pods)
    free = [{**attributes, "backend": name} for name, attributes in roots(trees)]
    for one, (_, required, preferred) in zip(pods, wanted, strict=True):
        able = [root for root in free if required.items() <= root.items()]
        found = cluster.find(type(one), one.metadata.name)
        assert bool(found.spec.node_name) == bool(able)
        if able:
            taken = next(root for root in able if root["backend"] == found.metadata.annotations[PREFIX + "backend"])
            assert liked(preferred, taken) == max(liked(preferred, root) for root in able)
            free.remove(taken)


def roots(trees: list[tuple[dict[str, str], int]]) -> Iterator[tuple[str, dict[str, str]]]:
    """Each root's name, with its attributes: a tree of several numbers them."""
    for i, (attributes, count) in enumerate(trees):
        yield from ((f"t{i}{number}" if count > 1 else f"t{i}", attributes) for number in range(count))


def liked(preferred: dict[str, str], root: dict[str, str]) -> int:
    return len(preferred.items() & root.items())
