"""Through any sequence of pools, connections, edits and restarts, silence equals a count second by second."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from fluence_plugins.master_queue.api.master_queue import MasterQueueSpec, PoolStatus
from fluence_plugins.master_queue.controller.pools import Pools, PoolState
from fluence_plugins.master_queue.messages import Message

from ...tools.examples import examples

NATS = "nats://nats:4222"
REPORTED = Message(quotas={"cpu": "1"})


def spec(**flavors: dict[str, Any]) -> MasterQueueSpec:
    whole = {"natsConnector": NATS, "natsSubject": "s", "virtualNode": "v", "poolTimeout": 30}
    named = [{"name": name, "natsFlavor": {**whole, **one}} for name, one in flavors.items()]
    return msgspec.convert({"template": {"cohort": "c"}, "flavors": named}, MasterQueueSpec)


def every(**more: Any) -> dict[str, Any]:
    return {"poolRegExp": ".*", **more}


SPECS = [
    spec(f=every(poolRegExp="a|b", poolTimeout=3), g=every(natsConnector="other", poolTimeout=5)),
    spec(f={"pools": ["a", "c"], "poolTimeout": 4}),
    spec(g=every(poolRegExp="b|c", poolTimeout=2), f=every(natsConnector="other", poolRegExp="a", poolTimeout=6)),
]
TAKES: list[dict[str, tuple[str, str, int]]] = [
    {"f": (NATS, "ab", 3), "g": ("other", "abc", 5)},
    {"f": (NATS, "ac", 4)},
    {"g": (NATS, "bc", 2), "f": ("other", "a", 6)},
]
"""For each spec, by flavor: connector, accepted pools, timeout."""
CONNECTORS = st.sampled_from([NATS, "other"])
STEPS = st.one_of(
    st.tuples(st.just("wait"), st.integers(1, 4)),
    st.tuples(st.just("hear"), CONNECTORS, st.sampled_from("abc")),
    st.tuples(st.just("lost"), CONNECTORS),
    st.tuples(st.just("connected"), CONNECTORS),
    st.tuples(st.just("edit"), st.integers(0, 2)),
    st.tuples(st.just("restart")),
)


class Counted:
    """Counts each pool's silence second by second."""

    def __init__(self) -> None:
        self.takes = TAKES[0]
        self.up: set[str] = set()
        self.ages: dict[str, tuple[str, float]] = {}

    def active(self, name: str) -> bool:
        flavor, age = self.ages[name]
        return age < self.takes[flavor][2]

    def wait(self, seconds: int) -> None:
        for name, (flavor, age) in self.ages.items():
            if self.takes[flavor][0] in self.up:
                self.ages[name] = (flavor, age + seconds)

    def hear(self, connector: str, name: str) -> None:
        for flavor, (its_connector, names, _) in self.takes.items():
            if its_connector == connector and name in names:
                if name not in self.ages or self.ages[name][0] == flavor or not self.active(name):
                    self.ages[name] = (flavor, 0)
                return

    def edit(self, takes: dict[str, tuple[str, str, int]]) -> None:
        """A pool keeps its state if its flavor still accepts it, or if another one with the same connector does."""
        before, self.takes, self.up = self.takes, takes, self.up & {connector for connector, _, _ in takes.values()}
        ages, self.ages = self.ages, {}
        for name, (flavor, age) in ages.items():
            others = [other for other, one in takes.items() if one[0] == before[flavor][0] and name in one[1]]
            stays = [flavor] if flavor in takes and name in takes[flavor][1] else others
            if stays:
                self.ages[name] = (stays[0], age)

    def restart(self) -> None:
        self.up.clear()
        self.ages = {name: (one[0], 0 if self.active(name) else float("inf")) for name, one in self.ages.items()}

    def states(self) -> dict[str, tuple[str, bool]]:
        return {name: (flavor, self.active(name)) for name, (flavor, _) in self.ages.items()}


@settings(max_examples=examples(500))
@given(st.lists(STEPS, max_size=40))
def test_any_sequence_equals_the_count_second_by_second(steps: list[tuple[Any, ...]]) -> None:
    current, now, model, pools = SPECS[0], 1000, Counted(), Pools(SPECS[0])
    for step in steps:
        match step:
            case ("wait", seconds):
                now += seconds
                model.wait(seconds)
            case ("hear", connector, name):
                pools.receive((connector, "s"), name, REPORTED, now)
                model.hear(connector, name)
            case ("lost", connector):
                pools.lost(connector, now)
                model.up.discard(connector)
            case ("connected", connector):
                pools.connected(connector, now)
                model.up.add(connector)
            case ("edit", number):
                current = SPECS[number]
                pools.follow(current, now)
                model.edit(TAKES[number])
            case _:
                kept = [PoolStatus(name=one.name, flavor=one.flavor, state=one.state) for one in pools.at(now)]
                pools = Pools(current)
                pools.restore(kept)
                model.restart()
        heard = [pool for pool in pools.at(now) if pool.state != PoolState.WAITING]
        assert {one.name: (one.flavor, one.state == PoolState.ACTIVE) for one in heard} == model.states()
        until = pools.next_silent(now)
        if until is not None:
            assert until > now
            assert any(one.state == PoolState.SILENT for one in pools.at(until))
