"""Requests with alternatives: the allocator takes the first available one."""

from .builders import (
    CARD,
    LINK,
    Cluster,
    ask,
    at_least,
    claim,
    configured,
    dev,
    devs,
    first,
    held,
    mine,
    part,
    same,
)

ALL = ask(count="all")
LINKED = ask("link")

one = Cluster("a-card-of-links-and-cards", part("p", [dev("c0")]))
one.pod("a-link-or-a-card", claim(first(LINKED, ask())), covers="prioritized-list-first-unavailable")
one.pod(
    "too-many-links-or-a-card",
    claim(first(ask("link", 500), ask())),
    covers="prioritized-list-too-many-in-first-subrequest",
)
one.pod("too-many-of-either", claim(first(ask("link", 500), ask(count=500))))

two = Cluster("a-card-and-a-link", part("p", [dev("c0")]), part("q", [dev("l0")], LINK))
two.pod("two-of-either", claim(first(ask("link", 2), ask(count=2))), covers="prioritized-list-non-available")
two.pod("the-later-of-each", claim(first(ask(count=2), LINKED), first(ask("link", 2), ask())))

links = Cluster("links", part("p", devs(2, "l"), LINK), part("q", [dev("c0")]))
links.pod(
    "each-set-up",
    claim(
        first(ask(count=2), ask("link", 2)),
        config=[configured(CARD, 1, "r0/s0"), configured(LINK, 2, "r0/s1"), configured(LINK, 3, "r0")],
    ),
    covers="prioritized-list-device-config",
)
links.pod(
    "each-set-up-by-its-class",
    claim(first(ask("set-card", 2), ask("set-link", 2))),
    covers="prioritized-list-class-config",
)

sizes = Cluster("three-sizes", part("p", [dev("c0", "2Gi"), dev("c1", "2Gi"), dev("c2", "1Gi")]))
sizes.pod(
    "by-size",
    claim(ask(where=at_least("1Gi")), first(ask(where=at_least("4Gi")), ask(count=2, where=at_least("2Gi")))),
    covers="prioritized-list-subrequests-with-expressions",
)

LARGE, MIDDLE = ask(where=at_least("8Gi")), ask(where=at_least("4Gi"))
tiers = Cluster("a-large-and-a-middle", part("p", [dev("c0", "8Gi")]), part("q", [dev("c1", "4Gi")]))
tiers.pod("large-then-either", claim(LARGE, first(LARGE, MIDDLE)), covers="prioritized-list-multi-request")
tiers.pod("either-then-large", claim(first(LARGE, MIDDLE), LARGE), covers="prioritized-list-with-backtracking")

ages = Cluster(
    "ages",
    part("p", [dev("c0", "8Gi", made="1.0.0")]),
    part("q", [dev("c1", "2Gi", made="2.0.0"), dev("c2", "1Gi", made="1.0.0")]),
)
smaller = first(ask(where=at_least("2Gi")), ask(where=at_least("1Gi")))
ages.pod(
    "of-one-age",
    claim(LARGE, smaller, rules=[same("made", "r0", "r1")]),
    covers="prioritized-list-subrequests-with-constraints-ref-parent-request",
)
ages.pod(
    "of-one-age-if-the-first",
    claim(LARGE, smaller, rules=[same("made", "r0", "r1/s0")]),
    covers="prioritized-list-subrequests-with-constraints-ref-sub-request",
)

taken = Cluster("one-taken-of-two", part("p", devs(2)), part("q", [dev("l0")], LINK), taken=[held("p", "c00")])
taken.pod("all-or-a-link", claim(first(ALL, LINKED)), covers="all-devices-some-allocated-prioritized-list")
taken.pod(
    "all-or-one",
    claim(first(ALL, ask())),
    covers="prioritized-list-subrequests-with-allocation-mode-all prioritized-list-allocation-mode-all",
)
free = Cluster("two-free", part("p", devs(2)))
free.pod(
    "one-and-all-or-one",
    claim(ask(), first(ALL, ask())),
    covers="prioritized-list-allocation-mode-all-multiple-requests",
)

empty = Cluster("no-card-but-a-link", part("p"), part("q", [dev("l0")], LINK))
empty.pod("all-or-a-link", claim(first(ALL, LINKED)), covers="all-devices-slice-without-devices-prioritized-list")
bare = Cluster("nothing-but-a-link", part("q", [dev("l0")], LINK))
bare.pod("all-or-a-link", claim(first(ALL, LINKED)), covers="all-devices-no-slices-prioritized-list")

NEW, OLD = (ask(count="all", where=mine("made") + f' == "{made}"') for made in ("new", "old"))
old = dev("c0", made="old")
marked = "prioritized-list-allocation-mode-all-with-selectors"
Cluster("an-old-one", part("p", [old])).pod("all-new-or-all-old", claim(first(NEW, OLD)), covers=marked)
Cluster("old-ones", part("p", [old]), part("q", [old])).pod(
    "all-new-or-all-old", claim(first(NEW, OLD)), covers=f"{marked}-multiple-pools"
)
Cluster(
    "old-here-new-there",
    part("p", [old]),
    part("q", [old, dev("c1", made="new")], nodeName="there"),
    nodes=("here", "there"),
).pod("all-new-or-all-old", claim(first(NEW, OLD)), covers=f"{marked}-multiple-pools-across-nodes")
NEW_CHOSEN, OLD_CHOSEN = ({**one, "deviceClassName": "chosen"} for one in (NEW, OLD))
Cluster(
    "few-chosen",
    part(
        "p",
        [dev("c0", made="new", chosen=False), dev("c1", made="old", chosen=False), dev("c2", made="old", chosen=True)],
    ),
).pod("all-new-or-all-old", claim(first(NEW_CHOSEN, OLD_CHOSEN)), covers=f"{marked}-deviceclass-subset")

half = first(ask(count=32), ask(count=16))
Cluster("sixty-four", part("p", devs(64))).pod(
    "thirty-two-or-sixteen-twice", claim(half, half), covers="prioritized-list-max-allocation-limit-request"
)
Cluster("thirty-one-and-two", part("p", devs(31)), part("q", devs(2, "l"), LINK)).pod(
    "all-or-two-and-two",
    claim(first(ALL, ask(count=2)), ask("link", 2)),
    covers="prioritized-list-max-allocation-allocation-mode-all",
)

kinds = Cluster("one-x-two-y", part("p", [dev("c0", kind="x"), dev("c1", kind="y"), dev("c2", kind="y")]))
X, Y = mine("kind") + ' == "x"', mine("kind") + ' == "y"'
kinds.pod(
    "three-y-or-two-and-two-or-an-x",
    claim(first(ask(count=3, where=Y), ask(count=2)), first(ask(count=2), ask(where=X))),
    covers="check-combinations-with-prioritized-list",
)
