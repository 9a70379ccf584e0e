"""Fair shares, compared with a simple division in rounds."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from session_scheduler.model.queue_shares import fair_shares
from session_scheduler.model.queues import Amounts, QueueSpec, QueueTree

RESOURCES = ("cpu", "memory", "gpu")
AMOUNTS = st.dictionaries(st.sampled_from(RESOURCES), st.integers(0, 40), max_size=3)


@st.composite
def hierarchies(draw: st.DrawFn) -> tuple[QueueTree, dict[str, Amounts]]:
    names = [f"q{index}" for index in range(draw(st.integers(1, 9)))]
    specs, requested = [], {}
    for index, name in enumerate(names):
        parent = draw(st.sampled_from(["", *names[:index]]))
        limit = draw(AMOUNTS)
        deserved = {key: min(amount, limit.get(key, amount)) for key, amount in draw(AMOUNTS).items()}
        specs.append(QueueSpec(name, parent, deserved, limit, draw(st.integers(0, 4)), draw(st.integers(0, 2))))
        requested[name] = draw(AMOUNTS)
    tree = QueueTree(specs)
    for name in reversed(names):  # a queue's amounts include those of its children
        parent = tree.specs[name].parent
        if parent:
            for key, amount in requested[name].items():
                requested[parent] = {**requested[parent], key: requested[parent].get(key, 0) + amount}
    return tree, requested


def by_rounds(tree: QueueTree, total: Mapping[str, int], requested: Mapping[str, Amounts], resource: str) -> Amounts:
    shares: Amounts = {}

    def asks(name: str) -> int:
        below = [child for child, spec in tree.specs.items() if spec.parent == name]
        own = requested.get(name, {}).get(resource, 0) - sum(requested[c].get(resource, 0) for c in below)
        asked = own + sum(map(asks, below))
        return min(asked, tree.specs[name].limit.get(resource, asked))

    def give(parent: str, amount: int) -> None:
        names = sorted(name for name, spec in tree.specs.items() if spec.parent == parent)
        has = {name: Fraction(min(asks(name), tree.specs[name].deserved.get(resource, 0))) for name in names}
        left = Fraction(amount) - sum(has.values())
        named = any(resource in tree.specs[name].deserved for name in names)
        weight = {name: tree.specs[name].weight or int(bool(tree.specs[name].deserved) and not named) for name in names}
        for priority in sorted({tree.specs[name].priority for name in names}, reverse=True):
            level = [name for name in names if tree.specs[name].priority == priority and weight[name]]
            while left > 0 and (hungry := [name for name in level if has[name] < asks(name)]):
                weights = sum(weight[name] for name in hungry)
                parts = {name: min(asks(name) - has[name], left * weight[name] / weights)
                         for name in hungry}  # fmt: skip
                for name, part in parts.items():
                    has[name] += part
                left -= sum(parts.values())
            whole = {name: int(has[name]) for name in level}
            over = int(sum(has[name] for name in level) - sum(whole.values()))
            for name in sorted(level, key=lambda name: (whole[name] - has[name], name))[:over]:
                whole[name] += 1
            has |= {name: Fraction(number) for name, number in whole.items()}
        for name in names:
            shares[name] = int(has[name])
            give(name, shares[name])

    give("", total.get(resource, 0))
    return shares


@given(hierarchies(), AMOUNTS)
def test_shares_equal_a_division_in_rounds(world: tuple[QueueTree, dict[str, Amounts]], total: Amounts) -> None:
    tree, requested = world
    found = fair_shares(tree, total, requested)
    for resource in RESOURCES:
        expected = by_rounds(tree, total, requested, resource)
        assert {name: found[name].get(resource, 0) for name in expected} == expected, resource


@given(hierarchies(), AMOUNTS)
def test_no_share_exceeds_requests_or_limits_and_shares_do_not_exceed_the_total(
    world: tuple[QueueTree, dict[str, Amounts]], total: Amounts
) -> None:
    tree, requested = world
    found = fair_shares(tree, total, requested)
    for parent, children in tree.children.items():
        for resource in RESOURCES:
            there = found[parent].get(resource, 0) if parent else total.get(resource, 0)
            given_ = sum(found[name].get(resource, 0) for name in children)
            deserved = sum(min(tree.specs[name].deserved.get(resource, 0), requested.get(name, {}).get(resource, 0))
                           for name in children)  # fmt: skip
            assert given_ <= max(there, deserved)
    for name, share in found.items():
        for resource, amount in share.items():
            assert amount <= requested[name].get(resource, 0)
            assert amount <= tree.specs[name].limit.get(resource, amount)
