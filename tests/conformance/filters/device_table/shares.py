"""Devices that several claims may share, and the amount of each share."""

from .builders import (
    Cluster,
    ask,
    at_least,
    claim,
    counted,
    dev,
    differ,
    first,
    held,
    mine,
    part,
    same,
)

RANGE = {"memory": {"default": "2", "validRange": {"min": "2", "max": "4", "step": "2"}}}
NONE = {"memory": {"default": "0", "validValues": ["0"]}}
ONE_TWO = {"memory": {"default": "1", "validValues": ["1", "2"]}}
ONE_THREE = {"memory": {"default": "1", "validValues": ["1", "3"]}}
ALL = ask("shared", count="all")
USED = {"memory": "1"}


def share(name="c0", memory=None, **more):
    return dev(name, memory, shared=True, **more)


def needs(amount, of="shared"):
    return ask(of, needs=amount)


def all_needing(amount):
    return ask("shared", count="all", needs=amount)


wide = "consumable-capacity-multi-allocatable-device"

bare = Cluster("shared-without-capacity", part("p", [share()]))
bare.pod(
    "a-share-each",
    claim(ask("shared")),
    claim(ask("shared")),
    covers=f"{wide}-without-capacity-without-capacity-request",
)
other = Cluster("shared-of-another-capacity", part("p", [share("c0", {"cores": "1"})]))
other.pod("memory", claim(needs("1")), covers=f"{wide}-with-missing-capacity-request")
other.pod("memory-of-all", claim(all_needing("1")), covers=f"{wide}-allocation-mode-all-with-missing-capacity-request")

Cluster("shared-twice-one", part("p", [share("c0", "1"), share("c1", "1")])).pod(
    "one-each", claim(ask("shared")), claim(ask("shared")), covers=f"{wide}-without-policy-without-capacity-request"
)
two = Cluster("shared-two", part("p", [share("c0", "2")]))
two.pod(
    "one-each",
    claim(ask("shared")),
    claim(ask("shared")),
    covers=f"{wide}-without-policy-without-capacity-request-block",
)
two.pod("half-each", claim(needs("1")), claim(needs("1")), covers=f"{wide}-without-policy-with-capacity-request")
two.pod(
    "unshared",
    claim(needs("1", "unshared")),
    covers="allow-multiple-allocations-exclude-multi-allocatable-device-by-class-selector",
)


def ranged(name, memory, **more):
    return share(name, memory, policy=RANGE, **more)


four = Cluster("shared-four-by-twos", part("p", [ranged("c0", "4")]))
four.pod(
    "what-is-usual-each",
    claim(ask("shared")),
    claim(ask("shared")),
    covers=f"{wide}-with-policy-without-capacity-request",
)
four.pod("one-each", claim(needs("1")), claim(needs("1")), covers=f"{wide}-with-range-policy-with-capacity-request")
four.pod("three", claim(needs("3")), covers=f"{wide}-with-range-policy-step")
nothing = Cluster("shared-for-nothing", part("p", [share("c0", "1", policy=NONE)]))
nothing.pod("a-share-each", claim(ask("shared")), claim(ask("shared")), covers=f"{wide}-with-zero-request-policy")
nothing.pod("one", claim(needs("1")), covers=f"{wide}-violates-zero-request-policy")
Cluster("shared-by-one-or-two", part("p", [share("c0", "4", policy=ONE_TWO)])).pod(
    "two", claim(needs("2")), covers=f"{wide}-with-valid-values-policy"
).pod("three", claim(needs("3")))
Cluster("shared-by-one-or-three", part("p", [share("c0", "3", policy=ONE_THREE)])).pod(
    "two", claim(needs("2")), covers=f"{wide}-with-valid-values-policy-round-up"
)
twos = Cluster("shared-two-by-twos", part("p", [ranged("c0", "2")]))
twos.pod(
    "one-and-two", claim(needs("1")), claim(needs("2")), covers=f"{wide}-with-exceeded-consumable-capacity-request"
)
twos.pod("four-or-two-or-any", claim(first(needs("4"), needs("2"), ask("shared"))), covers=f"{wide}-with-subrequest")
Cluster("shared-ten-by-twos", part("p", [ranged("c0", "10")])).pod(
    "six", claim(needs("6")), covers=f"{wide}-with-request-over-max-sharing-policy"
)

Cluster("shared-four-half-used", part("p", [ranged("c0", "4")]), taken=[held("p", "c0", {"memory": "2"})]).pod(
    "two", claim(needs("2")), covers=f"{wide}-with-allocated-capacity-use-remaining"
)
full = [held("p", "c0", {"memory": "2"})]
Cluster("shared-first-used", part("p", [ranged("c0", "2"), ranged("c1", "2")]), taken=full).pod(
    "two", claim(needs("2")), covers=f"{wide}-with-allocated-capacity-next-device"
)
Cluster("shared-used", part("p", [ranged("c0", "2")]), taken=full).pod(
    "two", claim(needs("2")), covers=f"{wide}-with-no-available-consumable-capacity"
)
hues = Cluster("shared-of-two-hues", part("p", [ranged("c0", "2", hue="red"), ranged("c1", "4", hue="blue")]))
hues.pod(
    "two-of-a-hue-and-one",
    claim(needs("2"), needs("2"), rules=[same("hue")]),
    claim(needs("2")),
    covers="consumable-capacity-with-multi-allocatable-device-backtrack",
)

every = f"{wide}-allocation-mode-all"
Cluster("shared-with-and-without", part("p", [share("c0", "2"), share("c1")])).pod(
    "all-with-two", claim(all_needing("2")), covers=f"{every}-filter-out-no-capacity"
)
unlike = part("p", [share("c0", "2"), share("c1", "1")])
Cluster("shared-two-and-one", unlike).pod(
    "all-with-two", claim(all_needing("2")), covers=f"{every}-filter-out-insufficient-capacity"
).pod("one-and-all-with-one", claim(needs("1"), all_needing("1")), covers=f"{every}-allocating-sufficient")
Cluster("shared-two-half-used-and-one", unlike, taken=[held("p", "c0", USED)]).pod(
    "all-with-one", claim(all_needing("1")), covers=f"{every}-in-use-sufficient"
)
alike = part("p", [share("c0", "1"), share("c1", "1")])
Cluster("shared-one-and-one", alike).pod(
    "one-and-all-with-one", claim(needs("1"), all_needing("1")), covers=f"{every}-allocating-insufficient"
)
Cluster("shared-one-used-and-one", alike, taken=[held("p", "c0", USED)]).pod(
    "all-with-one", claim(all_needing("1")), covers=f"{every}-in-use-insufficient"
)

Cluster("unshared-one", part("p", [dev("c0", "1")])).pod(
    "one", claim(needs("1", "card")), covers="consumable-capacity-dedicated-device-with-consumable-capacity-request"
)
dedicated = part("p", [dev("c0", "2", policy=RANGE)])
Cluster("unshared-two", dedicated).pod(
    "one-each",
    claim(needs("1", "card")),
    claim(needs("1", "card")),
    covers="consumable-capacity-dedicated-device-with-multiple-consumable-capacity-request",
)
changed = "allow-multiple-allocations-not-allocate-"
Cluster("shared-but-taken-whole", part("p", [ranged("c0", "2")]), taken=[held("p", "c0")]).pod(
    "one", claim(needs("1")), covers=changed + "multi-allocatable-device-which-already-dedicated"
)
Cluster("unshared-but-used-in-part", dedicated, taken=[held("p", "c0", USED)]).pod(
    "two", claim(needs("2", "card")), covers=changed + "dedicated-device-which-change-from-multi-allocatable"
)


# Shares of devices that consume counters: the first share consumes them.
def memory(amount):
    return {"chip": {"memory": amount}}


parts = [share(name, amount, uses=memory(amount)) for name, amount in [("c0", "4Gi"), ("c1", "6Gi"), ("c2", "4Gi")]]
Cluster("shared-parts", *counted("p", memory("8Gi"), parts)).pod(
    "one-and-large-or-small",
    claim(ask(), first(ask(where=at_least("6Gi")), ask(where=at_least("4Gi")))),
    covers="allow-multiple-allocations-with-partitionable-device",
)
modes = [share(f"c{k}", "1", uses=memory("1"), mode=mode) for k, mode in enumerate("ab")]
Cluster("shared-parts-in-use", *counted("p", memory("1"), modes), taken=[held("p", "c0", USED)]).pod(
    "the-other",
    claim(ask(needs="1", where=mine("mode") + ' == "b"')),
    covers="allow-multiple-allocations-with-shared-device-counter-cross-cycle",
).pod("the-same", claim(ask(where=mine("mode") + ' == "a"')))


def sides(name, memory):
    return share(
        name,
        {"memory": memory, "cores": "4"},
        policy={"cores": RANGE["memory"]},
        uses={"chip": {"memory": memory}, "die": {"cores": "4"}},
    )


large_or_small = first(ask(needs="1", where=at_least("4")), ask(needs="1", where=at_least("2")))
Cluster(
    "shared-parts-of-two-sets",
    *counted(
        "p", {"chip": {"memory": "4"}, "die": {"cores": "8"}}, [sides("c0", "2"), sides("c1", "4"), sides("c2", "2")]
    ),
).pod(
    "three",
    claim(needs("1"), needs("2"), large_or_small),
    covers="consumable-capacity-with-partitionable-device-multiple-capacity-pools",
)

kind = mine("kind")
mixed = [
    share("c0", uses=memory("1"), kind="common"),
    dev("c1", kind="common"),
    dev("c2", uses=memory("1"), kind="counting"),
]
Cluster("shared-part-first", *counted("p", memory("1"), mixed)).pod(
    "common-and-counting",
    claim(ask(where=f'{kind} == "common"'), ask(where=f'{kind} == "counting"')),
    covers="partitionable-consumable-capacity-backtrack-releases-counter",
)
hue = mine("hue")
Cluster("shared-and-another-hue", part("p", [share("c0", "2", hue="red"), dev("c1", hue="blue")])).pod(
    "red-and-all-red-or-blue",
    claim(ask(needs="2", where=f'{hue} == "red"')),
    claim(
        first(ask(count="all", needs="2", where=f'{hue} == "red"'), ask(where=f'{hue} == "blue"')), rules=[same("hue")]
    ),
    covers="consumable-capacity-rejection-rolls-back-constraints",
)
common = f'{kind} == "common"'
Cluster(
    "shared-part-and-two",
    *counted(
        "p",
        memory("1"),
        [
            share("c0", uses=memory("1"), kind="common", hue="red"),
            dev("c1", kind="spare", hue="blue"),
            dev("c2", kind="door", hue="blue"),
        ],
    ),
).pod(
    "common-again",
    claim(ask(where=common)),
    claim(
        ask(where=f'{common} || {kind} == "spare"'),
        ask(where=f'{kind} == "door"'),
        ask(where=common),
        rules=[same("hue", "r0", "r1")],
    ),
    covers="partitionable-empty-capacity-multiple-share-backtrack-keeps-counter-ownership",
)

one = Cluster("shared-of-one-hue", part("p", [ranged("c0", "2", hue="red")]))
one.pod(
    "of-two-hues",
    claim(needs("1"), needs("1"), rules=[differ("hue")]),
    covers="distinct-constraint-one-multi-allocatable-device-with-distinct-constraint",
)
Cluster(
    "shared-of-hues", part("p", [ranged("c0", "4", hue="red")], of=2), part("p", [ranged("c1", "4", hue="blue")], of=2)
).pod(
    "of-two-hues",
    claim(needs("2"), needs("2"), rules=[differ("hue")]),
    covers="distinct-constraint-two-multi-allocatable-devices-with-distinct-constraint",
)
