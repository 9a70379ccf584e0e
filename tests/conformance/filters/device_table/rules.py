"""Constraints: attributes that devices must share, or in which they must differ."""

from .builders import Cluster, ask, claim, dev, differ, first, mine, part, same


def described(name, number):
    return dev(name, numa=number, made=f"{number}.0.0", title=f"t{number}", quick=number == 1)


ATTRIBUTES = ("numa", "made", "title", "quick")
alike = Cluster("alike", part("p", [described("c0", 1), described("c1", 1)]))
alike.pod("two-alike", claim(ask(), ask(), rules=[same(one) for one in ATTRIBUTES]), covers="with-constraint")
alike.pod("by-what-none-has", claim(ask(), rules=[same("nothing")]), covers="with-constraint-non-existent-attribute")
alike.pod(
    "two-unlike",
    claim(ask(), ask(), rules=[differ("title")]),
    covers="list-attributes-distinct-constraint-scalar-string-values-not-distinct",
)
alike.pod(
    "two-of-a-title",
    claim(ask(count=2), rules=[same("title")]),
    covers="list-attributes-match-constaint-scalar-string-values",
)
unlike = Cluster("unlike", part("p", [described("c0", 1), described("c1", 2)]))
for attribute, kind in zip(ATTRIBUTES, ("int", "version", "string", "bool"), strict=True):
    unlike.pod(
        f"two-of-one-{attribute}",
        claim(ask(count=2), rules=[same(attribute)]),
        covers=f"with-constraint-not-matching-{kind}-attribute",
    )
unlike.pod(
    "all-of-one-numa",
    claim(ask(count="all"), rules=[same("numa")]),
    covers="with-constraint-not-matching-int-attribute-all-devices",
)
unlike.pod("one-of-one-version", claim(ask(), ask(), rules=[same("made", "r0")]), covers="with-constraint-for-request")
unlike.pod(
    "two-unlike",
    claim(ask(), ask(), rules=[differ("title")]),
    covers="list-attributes-distinct-constraint-scalar-string-values-all-distinct",
)
three = Cluster(
    "two-of-three-alike",
    part(
        "p",
        [dev("c0", made="1.0.0", hue="red"), dev("c1", made="2.0.0", hue="blue"), dev("c2", made="3.0.0", hue="blue")],
    ),
)
three.pod(
    "of-a-hue", claim(ask(), ask(), rules=[same("made", "r0"), same("hue")]), covers="with-constraint-for-request-retry"
)


def shared(name, **attributes):
    return dev(name, shared=True, **attributes)


four = Cluster(
    "shared-in-many-ways",
    part(
        "p",
        [
            shared("c0", made="1.0.0", numa=0, quick=True),
            shared("c1", made="1.0.1", numa=1, quick=False),
            shared("c2", made="1.0.2", numa=2, quick=True),
            shared("c3", made="1.0.0", numa=3, quick=True),
        ],
    ),
)
four.pod(
    "four-that-differ",
    claim(
        *[ask()] * 4,
        rules=[differ("quick", "r0", "r1"), differ("made", "r0", "r1", "r2"), differ("numa", "r0", "r1", "r2", "r3")],
    ),
    covers="with-distinct-constraints",
)
Cluster("shared-in-no-way", part("p", [shared("c0")])).pod(
    "that-differs", claim(ask(), rules=[differ("quick", "r0")]), covers="with-distinct-constraints-attribute-not-set"
)
quick = first(ask(where=mine("quick")), ask())
Cluster("shared-quick-and-slow", part("p", [shared("c0", quick=True), shared("c1", quick=False)])).pod(
    "quick-or-any-thrice",
    claim(quick, quick, quick, rules=[differ("quick", "r0", "r1")]),
    covers="with-distinct-constraints-with-subrequests",
)

# Values of unknown kinds, and lists, which the gate DRAListTypeAttributes would allow.
odd = Cluster("of-no-kind", part("p", [shared("c0", hue={}), shared("c1", hue={})]))
odd.pod(
    "that-differs", claim(ask(), rules=[differ("hue", "r0")]), covers="with-distinct-constraints-unknown-type-attribute"
)
lists = Cluster(
    "of-lists", part("p", [dev("c0", hue={"strings": ["red", "blue"]}), dev("c1", hue={"strings": ["red"]})])
)
for name, rule, odd_case, list_case in [
    (
        "two-of-a-hue",
        same("hue"),
        "list-attributes-match-constaint-with-empty-or-unknown-type",
        "list-attributes-disabled-match-constraint-with-lists",
    ),
    (
        "two-unlike",
        differ("hue"),
        "list-attributes-distinct-constaint-with-empty-or-unknown-type",
        "list-attributes-disabled-distinct-constraint-with-lists",
    ),
]:
    for cluster, case in [(odd, odd_case), (lists, list_case)]:
        cluster.pod(name, claim(ask(), ask(), rules=[rule]), covers=case)
        cluster.pod(f"{name}-of-any-class", claim(ask("any"), ask("any"), rules=[rule]))
