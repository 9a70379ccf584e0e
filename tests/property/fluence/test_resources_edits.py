"""The live graph through random lives in which the resources file is edited again and again, too.

After every edit: nothing that a live pod got is lost or another's, no pod gets what is down, no more pods hold a
device than may share it, the matcher holds what the accounts say, and graph and cluster agree. Both with trees that are
replaced one by one, and with a matcher that is built again.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from fluence_plugins.fluence.graph.placement import overlap
from fluence_plugins.resources.config import load_resources
from fluence_plugins.resources.names import without_places

from ...tools.examples import first
from .test_lives import Life

EDITS = 100


class EditedLife(Life):
    """A life in which each second step edits the file."""

    def __init__(self, seed: int, file: Path, policy: str, many: int) -> None:
        super().__init__(seed, str(file), policy)
        self.file = file
        self.many = many
        self.down: set[str] = set()

    def write(self) -> str:
        """Some file: trees come, go, move, grow and shrink; what they offer, and whether they are up, changes."""
        chance, trees = self.chance, list[dict[str, Any]]()
        for name, kind in (("aurora", "qdevice"), ("borealis", "qdevice"), ("alveo", "fpga"), ("cygnus", "qpu")):
            if chance.random() < 0.2:
                continue
            tree: dict[str, Any] = {"type": kind, "name": name, "attributes": {"region": chance.choice("ew")}}
            tree["count"] = chance.choice([1, 1, 1, 2])
            tree["parent"] = chance.choice(["cluster", "cluster", "n1"])
            tree["status"] = chance.choice(["up", "up", "down"])
            tree["sharing"] = chance.choice([1, 1, 2, 3])
            if kind == "qdevice":
                qubit = {"type": "qubit", "count": chance.randint(1, 3), "status": chance.choice(["up", "up", "down"])}
                sharing = chance.choice([1, 1, 2])
                tree["with"] = [{"type": "qpu", "count": chance.randint(1, 2), "sharing": sharing, "with": [qubit]}]
            trees.append(tree)
        chance.shuffle(trees)
        return json.dumps({"resources": trees}) if trees else ""

    async def edit(self) -> None:
        before = {uid: set(map(without_places, share)) for uid, share in self._devices().items()}
        text = self.write()
        self.file.write_text(text)
        self.plugin.live.loaded.many_trees = self.many
        self.plugin.set_resources(load_resources(text, "resources.yaml"))
        there = self.plugin.live.graph.virtual
        now = {uid: set(map(without_places, share)) for uid, share in self._devices().items()}
        every = {path for share in now.values() for path in share}
        for uid, held in before.items():
            for path in held & {without_places(path) for path in there} - now.get(uid, set()):
                assert path in every, "held, still there, and not held any more"
        self.scheduler.queue.plugin_changed("fluence")
        self.down = {path for path, node in there.items() if node.down}

    def _devices(self) -> dict[str, set[str]]:
        """The paths of the devices that each pod holds."""
        shares = self.plugin.live.holdings.shares.items()
        return {uid: {d.path for part in share.values() for d in part.devices} for uid, share in shares}

    async def step(self) -> None:
        await self.edit()
        self.check("edit")
        known = set(self.got)
        await super().step()
        there = self.plugin.live.graph.virtual
        given = {path for uid, paths in self._devices().items() if uid not in known for path in paths}
        assert not given & self.down, "given although down"
        assert not [path for path in given if there[path].closed], "given although too many hold it"
        await self.scheduler.cycle()
        assert self.plugin.drift == {"unheld": 0, "ended": 0}
        live = self.plugin.live
        jobs = {jobid for share in live.holdings.shares.values() for jobid in share}
        assert live.matcher.stat()["jobs"]["ALLOCATED"] == len(jobs) + len(live.foreign.held)

    def _check_kept(self, after: str) -> None:
        """What a pod was given is held or missing as long as it lives: whoever has it beside it, got it meanwhile."""
        live = self.plugin.live
        for uid in {*live.holdings.shares, *live.holdings.missing}:
            parts = [
                *live.holdings.shares.get(uid, {}).values(),
                *(part for _, part in live.holdings.missing.get(uid, ())),
            ]
            has = {without_places(d.path) for part in parts for d in part.devices}
            has |= {h.path for part in parts for h in part.hosts}
            assert self.got.setdefault(uid, has) == has, (after, uid, self.got[uid], has)
        held = {path for paths in self._devices().values() for path in paths}
        lacking = {d.path for parts in live.holdings.missing.values() for _, part in parts for d in part.devices}
        idle = [path for path in lacking & live.graph.virtual.keys() if not any(overlap(path, one) for one in held)]
        assert not idle, (after, "there, free, and yet not held", idle)


@pytest.mark.parametrize(("policy", "many"), [("first", 1), ("low", 32)])
@pytest.mark.parametrize("seed", first(range(4)))
def test_nothing_held_is_lost_while_the_resources_are_edited(seed: int, policy: str, many: int, tmp_path: Path) -> None:
    file = tmp_path / "resources.yaml"
    file.write_text("")

    async def live() -> None:
        life = EditedLife(seed, file, policy, many)
        await life.start()
        for _ in range(EDITS):
            await life.step()

    asyncio.run(live())
