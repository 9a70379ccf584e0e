"""The live graph through random lives in which the resources file is edited again and again, too.

After every edit: nothing that a live pod got is lost or another's, what is down is given to nobody, the matcher holds
what the accounts say, and graph and cluster agree.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from fluence_plugins.fluence.placement import overlap
from fluence_plugins.fluence.resources import load_resources

from .test_lives import Life

EDITS = 100


class EditedLife(Life):
    """A life of which each second step edits the file."""

    def __init__(self, seed: int, file: Path, policy: str) -> None:
        super().__init__(seed, str(file), policy)
        self.file = file
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
            if kind == "qdevice":
                qubit = {"type": "qubit", "count": chance.randint(1, 3), "status": chance.choice(["up", "up", "down"])}
                tree["with"] = [{"type": "qpu", "count": chance.randint(1, 2), "with": [qubit]}]
            trees.append(tree)
        chance.shuffle(trees)
        return json.dumps({"resources": trees}) if trees else ""

    async def edit(self) -> None:
        held = {path for share in self._devices().values() for path in share}
        text = self.write()
        self.file.write_text(text)
        self.plugin.set_resources(load_resources(text, "resources.yaml"))
        there = self.plugin.live.graph.virtual
        now = {path for share in self._devices().values() for path in share}
        assert held & there.keys() <= now, "held, still there, and not held any more"
        self.scheduler.pending.plugin_changed("fluence")
        self.down = {path for path, node in there.items() if node.down}

    def _devices(self) -> dict[str, set[str]]:
        """The paths of the devices that each pod holds."""
        shares = self.plugin.live.shares.items()
        return {uid: {d.path for part in share.values() for d in part.devices} for uid, share in shares}

    async def step(self) -> None:
        await self.edit()
        self.check("edit")
        owned = {path for paths in self.got.values() for path in paths}
        await super().step()
        given = {path for paths in self._devices().values() for path in paths} - owned
        assert not given & self.down, "given although down"
        await self.scheduler.cycle()
        assert self.plugin.drift == {"unheld": 0, "ended": 0}
        live = self.plugin.live
        known = {jobid for share in live.shares.values() for jobid in share}
        assert live.matcher.stat()["jobs"]["ALLOCATED"] == len(known) + len(live.foreign_load_held)

    def _check_kept(self, after: str) -> None:
        """What a pod was given is held or missing as long as it lives: whoever has it beside it, got it meanwhile."""
        live = self.plugin.live
        for uid in {*live.shares, *live.missing}:
            parts = [*live.shares.get(uid, {}).values(), *(part for _, part in live.missing.get(uid, ()))]
            has = {d.path for part in parts for d in part.devices} | {h.path for part in parts for h in part.hosts}
            assert self.got.setdefault(uid, has) == has, (after, uid, self.got[uid], has)
        held = {path for paths in self._devices().values() for path in paths}
        lacking = {d.path for parts in live.missing.values() for _, part in parts for d in part.devices}
        idle = [path for path in lacking & live.graph.virtual.keys() if not any(overlap(path, one) for one in held)]
        assert not idle, (after, "there, free, and yet not held", idle)


@pytest.mark.parametrize("policy", ["first", "low"])
@pytest.mark.parametrize("seed", range(3))
def test_nothing_held_is_lost_while_the_resources_are_edited(seed: int, policy: str, tmp_path: Path) -> None:
    file = tmp_path / "resources.yaml"
    file.write_text("")

    async def live() -> None:
        life = EditedLife(seed, file, policy)
        await life.start()
        for _ in range(EDITS):
            await life.step()

    asyncio.run(live())
