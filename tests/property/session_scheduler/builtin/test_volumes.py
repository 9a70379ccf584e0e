"""Also with volumes, batching changes no decision, no volume is bound twice, and gangs are all-or-nothing."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from session_scheduler.model.storage import PersistentVolume, PersistentVolumeClaim
from session_scheduler.testing import FakeCluster, node, pod, pod_group

from ....tools.examples import examples
from ....tools.volumes import claim, csi_node, storage_class, using, volume

MODES = ("naive", "board", "heap")
SIZES = st.sampled_from(["1Gi", "2Gi", "3Gi"])
NODES = ("n1", "n2", "n3")


@st.composite
def volume_worlds(draw):
    """Nodes with limits, volumes on some, claims that wait for a node, and single pods and gangs with any of them."""
    limits = [csi_node(name, **{"csi.example.com": draw(st.integers(0, 2))}) for name in NODES]
    reached = st.sampled_from([*NODES, NODES[:2], ()])
    volumes = [volume(f"v{i}", draw(SIZES), on=draw(reached)) for i in range(draw(st.integers(0, 5)))]
    count = draw(st.integers(1, 6))
    modes = st.sampled_from([["ReadWriteOnce"], ["ReadWriteOnce"], ["ReadWriteOncePod"]])
    classes = st.sampled_from(["local", "local", "made"])
    claims = [claim(f"c{i}", draw(SIZES), of=draw(classes), accessModes=draw(modes)) for i in range(count)]
    names = st.lists(st.sampled_from([one.metadata.name for one in claims]), max_size=2, unique=True)
    groups, pods = [], []
    for number in range(draw(st.integers(1, 3))):
        groups.append(pod_group(f"g{number}", draw(st.integers(1, 3))))
    for number in range(draw(st.integers(1, 7))):
        group = draw(st.sampled_from(["", "", *(one.metadata.name for one in groups)]))
        pods.append(pod(f"p{number}", cpu="1", group=group, volumes=using(*draw(names))))
    classes_ = [storage_class("local"), storage_class("made", "csi.example.com")]
    return [*(node(name, cpu="3") for name in NODES), *limits, *classes_, *volumes, *claims, *groups, *pods]


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(volume_worlds())
def test_three_evaluations_place_alike_and_bind_each_volume_to_one_claim(objects) -> None:
    answers = []
    for mode in MODES:
        cluster = FakeCluster(evaluation=mode)
        cluster.add(objects)
        cluster.run(cycles=2)
        placed = cluster.placements()
        claims = cluster.scheduler.cache.objects.of(PersistentVolumeClaim)
        bound = {key: one.spec.volume_name for key, one in claims.items() if one.bound}
        answers.append((placed, {name: cluster.reasons(name) for name, on in placed.items() if on is None},
                        {key: volume for key, volume in bound.items() if not volume.startswith("pvc-")}))  # fmt: skip
        assert max(Counter(bound.values()).values(), default=0) <= 1
        for one in cluster.scheduler.cache.objects.of(PersistentVolume).values():
            ref = one.spec.claim_ref
            assert ref is None or bound.get(f"{ref.namespace}/{ref.name}") == one.key
        for task in cluster.scheduler.cache.tasks.values():
            if task.node is not None:
                assert all(f"default/{key[2]}" in bound for key in task.cls.volumes)
    assert answers[0] == answers[1] == answers[2]
