"""The available devices, and the choice among them."""

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
    held,
    in_zone,
    mine,
    part,
)

ALL = ask(count="all")
ADMIN = ask(admin=True)

one = Cluster("one-card", part("p", [dev("c0")]), nodes=("here", "there"))
one.pod("without-claims", covers="empty no-claims-to-allocate")
one.pod("a-card", claim(ask()), covers="simple")
one.pod("a-card-each", claim(ask()), claim(ask()), covers="not-enough-suitable-devices")
one.pod("of-no-class", claim(ask("nobody-knows")), covers="no-classes unknown-class")
one.pod("of-a-class-without-name", claim(ask("")), covers="empty-class")
one.pod("all-cards", claim(ALL), covers="all-devices-single")
one.pod("one-then-all", claim(ask()), claim(ALL), covers="all-devices-no-solution")
one.pod("all-then-one", claim(ALL), claim(ask()), covers="all-devices-no-solution-reversed")
one.pod("by-nothing", claim({**ask(), "selectors": [{}]}), covers="unknown-selector")
one.pod("in-a-mode-to-come", claim(ask(allocationMode="Most")), covers="unknown-allocation-mode")
one.pod("ruled-by-nothing", claim(ask(), rules=[{}]), covers="unknown-constraint")
one.pod("by-what-does-not-compile", claim(ask(where="devize.driver")), covers="invalid-CEL-one-device")
one.pod(
    "all-by-what-does-not-compile", claim(ask(count="all", where="devize.driver")), covers="invalid-CEL-all-devices"
)
one.pod("of-a-class-that-does-not-compile", claim(ask("misspelt")), covers="invalid-CEL-one-device-class")
one.pod(
    "more-than-a-claim-may-have",
    claim(ask(count=500)),
    covers="too-many-devices-single-request all-devices-invalid-CEL",
)
one.pod("as-many-as-a-claim-may-have", claim(ask(count=32)), covers="many-devices-okay")
one.pod("set-up-by-the-class", claim(ask("set-card")), covers="with-class-device-config")
one.pod("set-up-by-the-claim", claim(ask(), config=[configured(CARD, 1)]), covers="claim-with-device-config")
one.pod("less-memory-than-none", claim(ask(needs="1Gi")))

elsewhere = Cluster(
    "elsewhere", part("p", [dev("c0")], LINK), part("q", [dev("c0")], nodeName="there"), nodes=("here", "there")
)
elsewhere.pod("a-card", claim(ask()), covers="other-node")

drivers = Cluster("two-drivers", part("p", devs(2)), part("p", [dev("l0")], LINK))
drivers.pod("a-card-and-a-link", claim(ask()), claim(ask("link")), covers="several-different-drivers")
drivers.pod(
    "all-cards-and-a-link",
    claim(ALL),
    claim(ask("link")),
    covers="all-devices-plus-another all-devices-many-plus-another",
)
drivers.pod(
    "a-link-and-all-cards",
    claim(ask("link")),
    claim(ALL),
    covers="all-devices-plus-another-reversed all-devices-many-plus-another-reversed",
)
drivers.pod(
    "set-up-by-two-classes",
    claim(ask("set-card"), ask("set-card"), ask("set-link")),
    covers="with-class-device-config-with-multiple-request-and-configs",
)

LARGE, SMALL = dev("large", "2Gi"), dev("small", "1Gi")
some, much = ask(where=at_least("1Gi")), ask(where=at_least("2Gi"))
Cluster("small-before-large", part("p", [SMALL, LARGE])).pod("both", claim(some, much), covers="small-and-large")
sizes = Cluster("large-before-small", part("p", [LARGE, SMALL]))
sizes.pod("both", claim(some, much), covers="small-and-large-backtrack-requests")
sizes.pod("both-in-claims", claim(some), claim(much), covers="small-and-large-backtrack-claims")

pools = Cluster("two-pools", part("p", [dev("c0")]), part("q", [dev("c0")]))
pools.pod("two", claim(ask(count=2)), covers="devices-split-across-different-slices")
pools.pod("all", claim(ALL), covers="all-devices-many")

Cluster("nothing").pod("a-card", claim(ask()), covers="no-slices").pod(
    "all", claim(ALL), covers="all-devices-no-slices"
)
hollow = Cluster("hollow", part("p"), part("q", [dev("l0")], LINK))
hollow.pod("all", claim(ALL), covers="all-devices-slice-without-devices")

taken = Cluster("one-of-two-taken", part("p", devs(2)), part("q", [dev("l0")], LINK), taken=[held("p", "c00")])
taken.pod("one", claim(ask()))
taken.pod("all", claim(ALL), covers="all-devices-some-allocated")
taken.pod("all-looked-at", claim(ask(count="all", admin=True)), covers="all-devices-some-allocated-admin-access")
taken.pod("two-looked-at", claim(ask(count=2, admin=True)), covers="count-devices-some-allocated-admin-access")

free = Cluster("two-cards", part("p", devs(2)))
free.pod(
    "looked-at-twice", claim(ADMIN, ask(count="all", admin=True)), covers="all-devices-some-allocating-admin-access"
)
free.pod("looked-at-by-two-claims", claim(ADMIN), claim(ADMIN), covers="separate-claims-share-device-admin-access")
free.pod(
    "used-and-looked-at",
    claim(ask()),
    claim(ADMIN),
    covers="admin-access-claims-device-allocating-for-non-admin-access",
)
free.pod("looked-at-and-used", claim(ADMIN), claim(ask(count=2)))

gone = Cluster("all-taken", part("p", [dev("c0")]), taken=[held("p", "c0"), held("p", "gone")])
gone.pod("one", claim(ask()), covers="already-allocated-devices")
gone.pod("looked-at", claim(ADMIN), covers="admin-access-enabled")

zone = Cluster("attached-in-a-zone", part("p", [dev("c0")], **in_zone("z1")), nodes=("here", "there"))
zone.pod("one", claim(ask()), covers="network-attached-device unsuccessful-allocation-network-attached-device")
by_name = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["here"]}]}]}
hosts = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "Exists"}]}]}
ways = Cluster(
    "attached-in-every-way",
    part("p", [dev("c0")], **in_zone("z1")),
    part("q", [dev("c0")], allNodes=True),
    part("r", [dev("c0")], nodeSelector=hosts),
    part("s", [dev("c0")], nodeSelector=by_name),
    nodes=("here", "there"),
)
ways.pod("four", claim(ask(count=4)), covers="many-network-attached-devices")
ways.pod("two", claim(ask(count=2)))
both = Cluster("attached-and-local", part("p", [dev("c0")], **in_zone("z1")), part("q", [dev("c0")]))
both.pod("two", claim(ask(count=2)), covers="local-and-network-attached-devices")
bound = Cluster("bound-to-its-node", part("p", [dev("c0", more={"bindsToNode": True})], nodeSelector=hosts))
bound.pod("one", claim(ask()), covers="node-restriction")

many = Cluster("a-card-too-many", part("p", devs(33)))
many.pod("in-two-requests", claim(ask(count=32), ask()), covers="too-many-devices-total")
many.pod("as-many-as-may-be", claim(ask(count=32)), covers="max-number-devices")
many.pod("all", claim(ALL))

KINDS = [dev("c0", kind="x"), dev("c1", kind="y"), dev("c2", kind="y")]
X, Y = mine("kind") + ' == "x"', mine("kind") + ' == "y"'
combos = Cluster("the-first-is-wanted-last", part("p", KINDS))
combos.pod("two-then-the-first", claim(ask(count=2), ask(where=X)), covers="check-combinations-with-backtracking")
spread = Cluster(
    "the-first-is-wanted-last-in-pools",
    part("p", KINDS[:1], of=2),
    part("p", KINDS[1:2], of=2),
    part("q", [dev("c2", kind="y", more={"bindingConditions": ["ready"]})]),
)
spread.pod(
    "two-then-the-first",
    claim(ask(count=2), ask(where=X)),
    covers="check-combinations-with-backtracking-across-slices-and-pools",
)
for name, parts, covers in [
    ("one-slice", [part("p", devs(4))], "check-combinations-within-single-request-single-pool-single-slice"),
    (
        "two-slices",
        [part("p", devs(2), of=2), part("p", devs(2, "d"), of=2)],
        "check-combinations-within-single-request-single-pool-multiple-slices",
    ),
    (
        "slices-and-pools",
        [part("p", devs(1), of=2), part("p", devs(1, "d"), of=2), part("q", devs(2))],
        "check-combinations-within-single-request-multiple-pools-multiple-slices",
    ),
    ("many-pools", [part(pool, devs(1)) for pool in "pqrs"], "check-combinations-within-single-request-many-pools"),
]:
    Cluster(f"four-in-{name}", *parts).pod("five", claim(ask(count=5)), covers=covers)

Cluster("pools-out-of-order", *[part(pool, devs(1)) for pool in "rqp"]).pod(
    "two", claim(ask(count=2)), covers="lexicographical-sorting-pools"
)
waiting = [dev("c0", waits="ready")]
Cluster("pool-with-conditions-first", part("p", waiting), part("r", devs(1)), part("q", devs(1))).pod(
    "two", claim(ask(count=2)), covers="lexicographical-sorting-pools-with-binding-conditions"
)
Cluster("slices-of-a-pool", *[part("p", [dev(f"c{k}")], of=3) for k in range(3)]).pod(
    "two", claim(ask(count=2)), covers="lexicographical-sorting-slices"
)
Cluster(
    "slice-with-conditions-first", part("p", waiting, of=3), part("p", [dev("c1")], of=3), part("p", [dev("c2")], of=3)
).pod("two", claim(ask(count=2)), covers="lexicographical-sorting-slices-with-binding-conditions")

SET = held("p", "c0")
there = Cluster("a-claim-that-has-its-device", part("p", [dev("c0")], **in_zone("z1")), nodes=("here", "there"))
there.claim("had", claim(ask()), [SET], **in_zone("z1")).pod("its-user", uses=["had"])
there.pod("its-user-with-another", claim(ask()), uses=["had"])
there.pod("of-nobody", uses=["nobody"])  # codespell:ignore nobody
ending = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["resource.kubernetes.io/delete-protection"]}
going = Cluster("a-claim-that-goes", part("p", [dev("c0")]))
going.claim("goes", claim(ask()), [SET], ending).pod("its-user", uses=["goes"])
seen = Cluster("looked-at-by-a-claim", part("p", [dev("c0")]), taken=[{**SET, "adminAccess": True}])
seen.pod("one", claim(ask()))
one.pod("of-no-class-or-a-card", claim([{"name": "s0", **ask("nobody-knows")}, {"name": "s1", **ask()}]))
