"""Pools whose slices are old, missing or contradictory."""

from .builders import Cluster, ask, at_least, claim, counted, dev, first, held, mine, part

ALL = ask(count="all")
THERE = {"nodeName": "there"}
BOTH = ("here", "there")

old = Cluster("obsolete", part("p", [dev("c0")], of=2), part("p", [dev("c1")], generation=2, of=2))
old.pod("one", claim(ask()), covers="obsolete-slice")
Cluster("obsolete-beside-whole", part("p", [dev("c0")]), part("p", [dev("c1")], generation=2)).pod("one", claim(ask()))

twice = Cluster("named-twice", part("p", [dev("c0")], of=2), part("p", [dev("c0")], of=2))
twice.pod("one", claim(ask()), covers="duplicate-slice")
twice.pod("all", claim(ALL))
lacking = Cluster("incomplete", part("p", [dev("c0")], of=2))
lacking.pod("one", claim(ask()), covers="no-allocation-from-incomplete-pools")
lacking.pod("all", claim(ALL), covers="all-devices-of-the-incomplete-pool")

invalid = [part("p", [dev("c0")], of=2), part("p", [dev("c0")], of=2), part("q", [dev("c1")])]
Cluster("invalid-beside-good", *invalid).pod(
    "one", claim(ask()), covers="invalid-pool-is-ok-if-devices-can-be-allocated-from-other"
).pod("two", claim(ask(count=2)))
Cluster("invalid-beside-taken", *invalid, taken=[held("q", "c1")]).pod(
    "one", claim(ask()), covers="invalid-pool-is-error-if-no-other-device-can-be-allocated"
)

HERE_AND_THERE = [part("p", [dev("c0")], of=2), part("p", [dev("c1")], of=2, **THERE)]
spread = Cluster("of-two-nodes", *HERE_AND_THERE, nodes=BOTH)
spread.pod("all", claim(ALL), covers="allocation-mode-all-with-multi-host-resource-pool")
spread.pod("one", claim(ask()), covers="different-resourceslices-in-pool-can-target-different-nodes")
moved = Cluster(
    "moved-in-part", part("p", [dev("c0")], of=2), part("p", [dev("c1")], generation=2, of=2, **THERE), nodes=BOTH
)
moved.pod("one", claim(ask()), covers="multi-host-resource-pool-with-stale-slice-for-current-node")


def update(whole, before, after):
    new = [part("p", [dev(f"c{k}")], generation=2, of=2, **after) for k in range(2 if whole else 1)]
    return [*[part("p", [dev(f"c{k}")], of=2, **before) for k in range(2)], *new]


HERE = {"nodeName": "here"}
for name, whole, covers in [("moves", True, "complete"), ("is-moving", False, "incomplete")]:
    Cluster(f"{name}-away", *update(whole, HERE, THERE), nodes=BOTH).pod(
        "one", claim(ask()), covers=f"multi-host-resource-pool-{covers}-update-from-node-1-to-node-2"
    )
    Cluster(f"{name}-here", *update(whole, THERE, HERE), nodes=BOTH).pod(
        "one", claim(ask()), covers=f"multi-host-resource-pool-{covers}-update-from-node-2-to-node-1"
    )

USES = {"chip": {"memory": "8Gi"}}
wrong = "partitionable-devices-"
Cluster(
    "counters-twice",
    part("p", [dev("c0")], of=4),
    part("p", of=4, sets=[("chip", {})]),
    part("p", [dev("c1")], of=4),
    part("p", of=4, sets=[("chip", {})]),
).pod("one", claim(ask()), covers=wrong + "same-counter-set-name-in-different-resource-slices")
consumption = wrong + "device-counter-consumption-references-"
Cluster("counters-of-nobody", *counted("p", {"chip": {}}, [dev("c0", uses={"other": {}})])).pod(
    "one", claim(ask()), covers=consumption + "unknown-counter-set"
)
Cluster("counter-of-nobody", *counted("p", {"chip": {"else": "8Gi"}}, [dev("c0", uses=USES)])).pod(
    "one", claim(ask()), covers=consumption + "unknown-counter-in-counter-set"
)
Cluster(
    "counters-of-another-pool", part("p", [dev("c0", uses=USES)]), part("q", sets=[("chip", {"memory": "8Gi"})])
).pod("one", claim(ask()), covers=consumption + "counter-set-in-other-pool")

CHIP = part("p", of=3, sets=[("chip", {"memory": "8Gi"})])
sixth, quarter = {"chip": {"memory": "6Gi"}}, {"chip": {"memory": "2Gi"}}
Cluster(
    "counters-used-there",
    CHIP,
    part("p", [dev("c0", "6Gi", uses=sixth), dev("c1", "2Gi", uses=quarter)], of=3),
    part("p", [dev("c2", uses=sixth)], of=3, **THERE),
    taken=[held("p", "c2")],
    nodes=BOTH,
).pod(
    "large-or-small",
    claim(first(ask(where=at_least("6Gi")), ask(where=at_least("2Gi")))),
    covers=wrong + "devices-on-different-nodes-consume-same-counter-set",
)
Cluster(
    "counters-wrong-there",
    CHIP,
    part("p", [dev("c0", "6Gi", uses=sixth)], of=3),
    part("p", [dev("c2", uses={"other": {"memory": "6Gi"}})], of=3, **THERE),
    nodes=BOTH,
).pod("one", claim(ask()), covers=wrong + "validation-error-on-non-targeting-slice")

# Node selection per device.
OWN = {"perDeviceNodeSelection": True}
zone = {
    "nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["z1"]}]}]}
}
Cluster("by-device-without-counters", part("p", [dev("c0", more=HERE)], **OWN), nodes=BOTH).pod("one", claim(ask()))
four = {"chip": {"memory": "4Gi"}}
named = Cluster(
    "by-device-and-name",
    *counted(
        "p",
        {"chip": {"memory": "18Gi"}},
        [dev("c0", "4Gi", uses=four, more=HERE), dev("c1", "6Gi", uses=sixth, more=THERE)],
        **OWN,
    ),
    nodes=BOTH,
)
named.pod(
    "large-or-small",
    claim(first(ask(where=at_least("6Gi")), ask(where=at_least("4Gi")))),
    covers=wrong + "per-device-node-selection-nodename",
)
Cluster(
    "by-device-and-zone",
    *counted("p", {"chip": {"memory": "18Gi"}}, [dev("c0", "4Gi", uses=four, more=zone)], **OWN),
    nodes=BOTH,
).pod("one", claim(ask()), covers=wrong + "per-device-node-selection-node-selector")
mixed = [
    dev("c0", uses=four, more=zone),
    dev("c1", uses=four, more=HERE),
    dev("c2", uses=four, more={"allNodes": True}),
]
ways = Cluster(
    "by-device-in-every-way",
    *counted("p", {"chip": {"memory": "18Gi"}}, mixed, **OWN),
    *counted(
        "q", {"die": {"memory": "12Gi"}}, [dev(f"d{k}", kind="d", uses={"die": {"memory": "4Gi"}}) for k in range(3)]
    ),
    nodes=BOTH,
)
ways.pod(
    "three-of-each",
    claim(
        ask(count=3), ask(count=3, where=f'"kind" in device.attributes["card.example.com"] && {mine("kind")} == "d"')
    ),
    covers=wrong + "per-device-node-selection-node-selector-multiple-devices",
)
ways.pod("one", claim(ask(where='!("kind" in device.attributes["card.example.com"])')))
