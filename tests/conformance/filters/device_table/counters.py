"""Devices that are parts of one device and consume its counters."""

from .builders import (
    Cluster,
    ask,
    at_least,
    claim,
    counted,
    dev,
    first,
    held,
    mine,
    same,
    taint,
    tolerates,
)

ONE = {"slots": "1"}
USES = {"chip": ONE}


def memory(amount, **more):
    return {"memory": amount, **more}


def slot(name, **more):
    return dev(name, uses=USES, **more)


def piece(name, amount, **more):
    return dev(name, amount, uses={"chip": memory(amount)}, **more)


half = Cluster("half-a-chip", *counted("p", {"chip": memory("8Gi")}, [piece("c0", "4Gi")]))
half.pod("one", claim(ask()), covers="partitionable-devices-single-device")
half.pod("all", claim(ask(count="all")), covers="all-devices-with-consumed-counters")
half.pod("two", claim(ask(count=2)))

worn = Cluster("worn-part-first", *counted("p", {"chip": ONE}, [slot("c0", taints=[taint("NoSchedule")]), slot("c1")]))
worn.pod("one", claim(ask()), covers="partitionable-devices-taint-releases-counter")
hues = [slot("c0", hue="red"), slot("c1", hue="blue"), slot("c2", hue="blue")]
hued = Cluster("parts-of-two-hues", *counted("p", {"chip": {"slots": "2"}}, hues))
hued.pod(
    "two-of-a-hue", claim(ask(count=2), rules=[same("hue")]), covers="partitionable-devices-constraint-releases-counter"
)

ruled = Cluster("all-of-two-numas", *counted("p", {"chip": ONE}, [dev("c0", numa=1), slot("c1", numa=2)]))
ruled.pod(
    "all-of-a-numa",
    claim(ask(count="all"), rules=[same("numa")]),
    covers="partitionable-all-mode-constraint-must-error-with-reserved-counter",
)

THREE = [piece("c0", "4Gi"), piece("c1", "6Gi"), piece("c2", "4Gi")]
LARGE_OR_SMALL = first(ask(where=at_least("6Gi")), ask(where=at_least("4Gi")))
three = Cluster("three-parts", *counted("p", {"chip": memory("8Gi")}, THREE))
three.pod("one-and-large-or-small", claim(ask(), LARGE_OR_SMALL), covers="partitionable-devices-prioritized-list")
three.pod("two", claim(ask(), ask()), covers="partitionable-devices-multiple-devices")
three.pod("three", claim(ask(count=3)))


def sides(name, amount, cores, one, other):
    return dev(name, {"memory": amount, "cores": cores}, uses={"left": one, "right": other})


split = Cluster(
    "two-sets",
    *counted(
        "p",
        {"left": memory("18Gi"), "right": {"cores": "8"}},
        [
            sides(name, f"{n}Gi", str(n), memory(f"{n}Gi"), {"cores": str(n)})
            for name, n in [("c0", 4), ("c1", 6), ("c2", 4)]
        ],
    ),
)
split.pod(
    "one-and-large-or-small", claim(ask(), LARGE_OR_SMALL), covers="partitionable-devices-multiple-capacity-pools"
)
woven = Cluster(
    "two-sets-of-two",
    *counted(
        "p",
        {"left": memory("18Gi", cores="8"), "right": memory("18Gi", cores="12")},
        [
            sides("c0", "2Gi", "4", memory("4Gi", cores="6"), memory("2Gi", cores="4")),
            sides("c1", "6Gi", "6", memory("6Gi", cores="4"), memory("6Gi", cores="6")),
            sides("c2", "4Gi", "4", memory("4Gi", cores="4"), memory("4Gi", cores="4")),
        ],
    ),
)
woven.pod("two", claim(ask(), ask()), covers="partitionable-devices-multiple-counters")


def both(name, amount, cores):
    return dev(name, {"memory": amount, "cores": cores}, uses={"chip": memory(amount, cores=cores)})


WHOLE = {"chip": memory("18Gi", cores="8")}
pools = Cluster(
    "two-chips-in-use",
    *counted("p", WHOLE, [both("c0", "4Gi", "6"), both("c1", "6Gi", "4"), both("c2", "4Gi", "4")]),
    *counted("q", WHOLE, [both("c0", "4Gi", "6"), both("c1", "7Gi", "1"), both("c2", "7Gi", "1")]),
    taken=[held("p", "c1"), held("p", "c2"), held("q", "c0")],
)
pools.pod("two", claim(ask(), ask()), covers="partitionable-devices-multiple-pools")

spare = Cluster(
    "a-counter-of-no-use",
    *counted("p", {"chip": memory("8Gi", spare="1")}, [piece("c0", "5Gi"), piece("c1", "4Gi"), piece("c2", "4Gi")]),
)
spare.pod("two", claim(ask(count=2)), covers="partitionable-devices-unused-counters-in-counter-set")
for name, amount, covers in [
    ("used-up", "16Gi", "no-capacity-available"),
    ("overdrawn", "20Gi", "overallocated-capacity-pool"),
]:
    Cluster(
        name,
        *counted("p", {"chip": memory("18Gi")}, [piece("c0", "4Gi"), piece("c1", amount)]),
        taken=[held("p", "c1")],
    ).pod("one", claim(ask()), covers=f"partitionable-devices-{covers}")

rooms = [dev(f"c{k}", uses={"place": {f"at{k}": "1"}, "chip": memory("10Gi")}, special=k == 0) for k in range(3)]
special = Cluster(
    "parts-in-places", *counted("p", {"place": {f"at{k}": "1" for k in range(3)}, "chip": memory("30Gi")}, rooms)
)
special.pod(
    "two-and-the-special",
    claim(ask(count=2), ask(where=mine("special"))),
    covers="partitionable-devices-with-attribute-selector",
)

# Binding conditions do not change what a part consumes.
wait = "partitionable-devices-with-binding-conditions"
ready = piece("c0", "4Gi", waits="ready")
EIGHT = {"chip": memory("8Gi")}
Cluster("part-that-waits", *counted("p", EIGHT, [ready])).pod("one", claim(ask()), covers=wait)
Cluster("parts-that-wait", *counted("p", EIGHT, [ready, piece("c1", "4Gi", waits="linked")])).pod(
    "two", claim(ask(count=2)), covers=f"{wait}-multiple"
)
Cluster(
    "parts-some-of-which-wait",
    *counted("p", EIGHT, [piece("c0", "2Gi", waits="ready"), piece("c1", "2Gi"), piece("c2", "4Gi", waits="linked")]),
).pod("three", claim(ask(count=3)), covers=f"{wait}-some-devices-no-conditions")
parts = [*counted("p", {"die": memory("8Gi")}, [dev("c1", uses={"die": memory("4Gi")})]), *counted("p", EIGHT, [ready])]
for one in parts:
    one["spec"]["pool"]["resourceSliceCount"] = 4
Cluster("parts-in-slices-that-wait", *parts).pod("two", claim(ask(count=2)), covers=f"{wait}-multi-slices")
worn_ready = [piece("c0", "4Gi", waits="ready", taints=[taint("NoSchedule")]), piece("c1", "4Gi")]
tainted = Cluster("worn-part-that-waits", *counted("p", EIGHT, worn_ready))
tainted.pod("two", claim(ask(count=2)), covers=f"{wait}-and-taints")
tainted.pod(
    "two-tolerant", claim(ask(count=2, tolerations=[tolerates("NoSchedule")])), covers=f"{wait}-and-taints-tolerated"
)
