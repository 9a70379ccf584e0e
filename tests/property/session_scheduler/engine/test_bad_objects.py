"""Malformed objects: the scheduler places the pods that do not use them, and reports a reason for the others."""

from __future__ import annotations

import random

import pytest

from session_scheduler.model.objects import Affinity, Pod
from session_scheduler.testing import FakeCluster, gang, node, pod

from .odd_objects import PREFERRED, WHOLE, Tree, metadata, odd, read

ODD_PODS = 6
KINDS = sorted(WHOLE)


def exact(kind: str, name: str, **fields: object) -> Tree:
    return {"kind": kind, "metadata": {"name": name, "namespace": "default"}, **fields}


def others(cluster: FakeCluster) -> list[str]:
    """Add pods that use every plugin and fit on n3, which no odd object concerns. Returns their names."""
    request = {"name": "r", "exactly": {"deviceClassName": "good", "allocationMode": "ExactCount", "count": 1}}
    devices = {"driver": "a.example.com", "nodeName": "n3", "devices": [{"name": "d"}],
               "pool": {"name": "a", "generation": 1, "resourceSliceCount": 1}}  # fmt: skip
    for tree in (
        exact("DeviceClass", "good", spec={"selectors": [{"cel": {"expression": 'device.driver == "a.example.com"'}}]}),
        exact("ResourceSlice", "good", spec=devices),
        exact("ResourceClaim", "good", spec={"devices": {"requests": [request]}}),
        exact("StorageClass", "good", provisioner="good.example.com", volumeBindingMode="WaitForFirstConsumer"),
        exact("PersistentVolumeClaim", "good", spec={"storageClassName": "good", "accessModes": ["ReadWriteOnce"],
                                                     "resources": {"requests": {"storage": "1Gi"}}}),
    ):  # fmt: skip
        cluster.add(read(tree) or ())
    selector = {"matchLabels": {"app": "odd"}}
    apart = {PREFERRED: [{"weight": 9, "podAffinityTerm": {"topologyKey": "zone", "labelSelector": selector}}]}
    spread = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": selector}
    cluster.add(
        pod("plain"),
        pod("volume", volumes=({"name": "v", "persistentVolumeClaim": {"claimName": "good"}},)),
        pod("devices", resource_claims=({"name": "e", "resourceClaimName": "good"},)),
        pod("near", affinity=Affinity(pod_anti_affinity=apart), topology_spread_constraints=(spread,)),
        gang("gang", 2),
    )
    return ["plain", "volume", "devices", "near", "gang-0", "gang-1"]


@pytest.mark.parametrize("seed", range(len(KINDS)))
def test_an_odd_object_affects_no_other_pods(seed: int) -> None:
    choose = random.Random(seed)
    cluster = FakeCluster(checked=False).use("NodeResourceTopologyMatch")  # odd pods on nodes have odd requests
    cluster.add(*(node(f"n{n}", labels={"zone": "a", "age": "3"}) for n in (1, 2)), node("n3"))
    trees: list[Tree] = [{**WHOLE[kind], "kind": kind, "metadata": metadata("odd")}
                         for kind in KINDS if kind not in ("Pod", "Node", KINDS[seed % len(KINDS)])]  # fmt: skip
    spoilt: list[tuple[str, list[str]]] = []
    for kind, name in ((KINDS[seed % len(KINDS)], "odd"), *(("Pod", f"odd-{number}") for number in range(ODD_PODS))):
        tree, how = odd(choose, kind, name)
        if kind == "Pod" and choose.random() < 0.5 and isinstance(tree.get("spec"), dict):
            tree["spec"]["nodeName"] = choose.choice(("n1", "n2", "gone"))
        trees.append(tree)
        spoilt.append((name, how))
    early, late = (trees, []) if choose.random() < 0.5 else ([], trees)
    cluster.add(*(obj for obj in map(read, early) if obj is not None))
    names = others(cluster)
    cluster.start()
    cluster.add(*(obj for obj in map(read, late) if obj is not None))
    cluster.run(cycles=2)
    cluster.advance(30)
    cluster.run(cycles=2)
    for name in names:
        assert cluster.node_of(name) is not None, (name, cluster.reasons(name), spoilt)
    for task in cluster.scheduler.cache.unbound.values():
        reason = cluster.reasons(task.name)
        assert reason, spoilt
        assert "failed in" not in reason, (reason, spoilt)
    for tree in trees:  # fix the objects, then delete the pods
        whole = read({**WHOLE[tree["kind"]], "kind": tree["kind"], "metadata": metadata(tree["metadata"]["name"])})
        cluster.add(whole or ())
    cluster.run()
    for known in [
        one for one in cluster._objects().values() if isinstance(one, Pod) and one.metadata.name.startswith("odd")
    ]:
        cluster.delete(Pod, known.metadata.name)
    cluster.add(pod("last"))
    cluster.run(cycles=2)
    cluster.assert_bound("last")
