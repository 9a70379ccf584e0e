"""Shared devices compared with a model that only counts: a pod gets devices exactly if the numbers allow it."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from msgspec.structs import replace

from fluence_plugins.fluence.errors import DeviceError
from fluence_plugins.fluence.graph.allocations import Job
from fluence_plugins.fluence.graph.cluster_graph import HostResources
from fluence_plugins.fluence.graph.live_graph import LiveGraph
from fluence_plugins.fluence.graph.placement import Placement
from fluence_plugins.fluence.matching.jobspecs import device_jobspecs
from fluence_plugins.resources.config import ResourcesConfig, load_resources
from fluence_plugins.resources.names import any_place, without_places
from fluxion_cy import Busy, Unsatisfiable

from ...tools.examples import first

HOSTS = {"n1": HostResources("n1", 4, 4096)}


class World:
    """A live graph and the model: how many pods may share each device, and the holders of each."""

    def __init__(self, seed: int, policy: str, many: int) -> None:
        self.chance = random.Random(seed)
        self.policy = policy
        self.many = many
        self.count = 0
        self.may: dict[str, int] = {}
        """By path of a device: the number of pods that may hold it."""
        self.parents: set[str] = set()
        self.held: dict[str, set[str]] = {}
        """By pod: the paths of the devices that it holds."""
        self.config = self.edited()
        self.begin()

    def begin(self) -> None:
        self.live = LiveGraph(self.config, self.policy)
        self.live.loaded.many_trees = self.many
        self.live.set_hosts(HOSTS)

    def edited(self) -> ResourcesConfig:
        chance, lines = self.chance, list[str]()
        self.may, self.parents = {}, set()
        for name, number in (("east", 3), ("west", 2)):
            sharing = [chance.choice([1, 2, 3]) for _ in range(number)]
            inner = ", ".join(f"{{type: qpu, name: {name}{i}, sharing: {n}}}" for i, n in enumerate(sharing))
            lines.append(f"- {{type: farm, name: {name}, with: [{inner}]}}")
            self.parents.add(f"/cluster/{name}")
            self.may |= {f"/cluster/{name}/{name}{i}": n for i, n in enumerate(sharing)}
        self.may["/cluster/lone"] = chance.choice([1, 2, 4])
        lines.append(f"- {{type: qpu, name: lone, sharing: {self.may['/cluster/lone']}}}")
        twin = chance.choice([1, 2])
        self.may |= {"/cluster/twin0": twin, "/cluster/twin1": twin}
        lines.append(f"- {{type: qpu, name: twin, count: 2, sharing: {twin}}}")
        chance.shuffle(lines)
        return load_resources("\n".join(["resources:", *lines]), "model")

    # ------------------------------------------------------------------ the model

    def free(self) -> list[str]:
        number = Counter(path for paths in self.held.values() for path in paths)
        return [p for p, may in self.may.items() if number[p] < may and not number[p.rpartition("/")[0]]]

    def can_have(self, kind: str, count: int) -> bool:
        if kind == "farm":
            used = {path for paths in self.held.values() for path in paths}
            return count == 1 and any(not any(u == p or u.startswith(p + "/") for u in used) for p in self.parents)
        trees = Counter(path.rstrip("0123456789") for path in self.free())
        return max(trees.values(), default=0) >= count

    # ------------------------------------------------------------------ events

    def comes(self) -> None:
        kind, number = self.chance.choice([("qpu", 1), ("qpu", 1), ("qpu", 2), ("qpu", 3), ("farm", 1)])
        self.count += 1
        pod = f"u{self.count}"
        possible = self.can_have(kind, number)
        found = self.matched(kind, number)
        assert (found is not None) == possible, (kind, number, self.held, self.may)
        if found is None:
            return
        self.live.allocations.hold(pod, {found.jobid: found.placement})
        got = [without_places(device.path) for device in found.placement.devices]
        assert len(set(got)) == number, "expected different devices"
        assert set(got) <= {*self.free(), *self.parents}
        self.held[pod] = set(got)

    def matched(self, kind: str, number: int) -> Job | None:
        try:
            jobspecs = device_jobspecs(self.live.graph, kind, number)
        except DeviceError:
            return None
        for jobspec in jobspecs:
            try:
                return self.live.allocations.match(jobspec.to_json())
            except (Busy, Unsatisfiable):
                continue
        return None

    def ends(self) -> None:
        if self.held:
            pod = self.chance.choice(sorted(self.held))
            del self.held[pod]
            self.live.allocations.free(pod)
            if self.live.allocations.can_shrink:
                self.live.allocations.shrink_places()

    def edit(self) -> None:
        self.config = self.edited()
        self.live.set_config(self.config)

    def restart(self) -> None:
        shares = dict(self.live.holdings.shares)
        if self.chance.random() < 0.5:
            self.config = self.edited()  # while no scheduler ran
        self.begin()
        self.live.allocations.replay(
            {pod: {jobid: _recorded(part) for jobid, part in share.items()} for pod, share in shares.items()}
        )

    def step(self) -> None:
        happens = self.chance.choices([self.comes, self.ends, self.edit, self.restart], [10, 6, 2, 1])[0]
        happens()
        self.check()

    def check(self) -> None:
        assert not self.live.holdings.missing
        shares = {
            uid: [d.path for part in s.values() for d in part.devices] for uid, s in self.live.holdings.shares.items()
        }
        assert {uid: set(map(without_places, paths)) for uid, paths in shares.items()} == self.held
        places = [path for paths in shares.values() for path in paths]
        assert len(set(places)) == len(places), "expected one pod in each place"
        assert self.live.matcher.stat()["jobs"]["ALLOCATED"] == len(
            {j for s in self.live.holdings.shares.values() for j in s}
        )
        number = Counter(path for paths in self.held.values() for path in paths)
        assert self.live.graph.extra_places == {p: number[p] - may for p, may in self.may.items() if number[p] > may}


def _recorded(part: Placement) -> Placement:
    """The recorded form of a part, without its places."""
    return replace(part, devices=tuple(replace(device, path=any_place(device.path)) for device in part.devices))


@pytest.mark.parametrize(("policy", "many"), [("first", 32), ("low", 1), ("high", 32)])
@pytest.mark.parametrize("seed", first(range(5)))
def test_pods_share_devices_up_to_their_limits(seed: int, policy: str, many: int) -> None:
    world = World(seed, policy, many)
    for _ in range(150):
        world.step()
