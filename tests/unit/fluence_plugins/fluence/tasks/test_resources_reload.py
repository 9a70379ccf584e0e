"""How the scheduler follows its resources file: what it passes on, when, and what becomes of a bad file."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path

import pytest

from fluence_plugins.fluence.errors import GraphError
from fluence_plugins.fluence.metrics import reload_metrics
from fluence_plugins.fluence.tasks.resources_reload import ResourcesReload
from fluence_plugins.resources.config import ResourcesConfig, resource_types
from fluence_plugins.resources.file import ResourcesFile
from session_scheduler.errors import FluenceError
from session_scheduler.framework.bindings import Runtime

Claim = Callable[[str, Mapping[str, Collection[str]]], Awaitable[None]]
QPU = "resources: [{type: qpu}]"
FPGA = "resources: [{type: fpga}]"


class Followed:
    """A file that is followed; a config of type `bad` cannot be applied."""

    def __init__(self, folder: Path, text: str = QPU) -> None:
        self.path = folder / "resources.yaml"
        self.path.write_text(text)
        self.applied: list[list[str]] = []
        self.asked: list[tuple[str, Callable[[], None]]] = []
        self.in_use = {"qpu"}
        self.reload = ResourcesReload(ResourcesFile(str(self.path)), self.apply, lambda: self.in_use)
        self.reload.load()

    def apply(self, config: ResourcesConfig) -> None:
        types = resource_types(config)
        if "bad" in types:
            raise GraphError("two vertices have this path")
        self.applied.append(types)
        self.in_use = set(types)

    def rewrite(self, text: str) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(text)
        new.replace(self.path)

    def measured(self) -> dict[str, float]:
        return {family.name: family.samples[0].value for family in reload_metrics(self.reload)}

    async def looked(self, *texts: str, claim: Claim | None = None, at_once: bool = False) -> None:
        """Follow while the file comes to hold these texts, one look each. With `at_once` changes need no later turn."""
        rest = list(texts)

        def change(plugin: str, work: Callable[[], None]) -> None:
            self.asked.append((plugin, work))
            if at_once:
                work()

        async def sleep(_seconds: float) -> None:
            if not rest:
                done.set()
                await asyncio.Event().wait()
            if text := rest.pop(0):
                self.rewrite(text)

        done = asyncio.Event()
        runtime = Runtime(lambda *_: None, lambda: True, None, change, claim=claim)
        context = self.reload.serve(runtime, "fluence", sleep=sleep)
        assert context is not None
        async with asyncio.timeout(5), context:
            await done.wait()


async def test_what_the_file_comes_to_say_is_applied_when_the_scheduler_says_so(tmp_path: Path) -> None:
    followed = Followed(tmp_path)
    await followed.looked(FPGA, QPU)
    assert followed.applied == []
    assert [plugin for plugin, _ in followed.asked] == ["fluence", "fluence"]
    for _, work in followed.asked:
        work()
    assert followed.applied == [["fpga"], ["qpu"]]
    assert followed.measured() == {"fluence_resources_last_load_successful": 1, "fluence_resources_changes": 2}


async def test_a_file_that_cannot_be_used_is_told_and_changes_nothing(tmp_path: Path) -> None:
    followed = Followed(tmp_path)
    await followed.looked("resources: [")
    assert followed.asked == []
    assert followed.measured() == {"fluence_resources_last_load_successful": 0, "fluence_resources_changes": 0}
    await followed.looked(FPGA)
    followed.asked[0][1]()
    assert followed.measured() == {"fluence_resources_last_load_successful": 1, "fluence_resources_changes": 1}


async def test_a_resource_of_another_scheduler_is_refused_until_that_one_gives_it_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    followed, claimed = Followed(tmp_path), []

    async def claim(plugin: str, names: Mapping[str, Collection[str]]) -> None:
        claimed.append((plugin, names))
        if len(claimed) < 3:
            raise FluenceError("resource 'fpga' belongs to another")

    await followed.looked(FPGA, "", claim=claim)
    assert (claimed, followed.asked) == ([("fluence", {"resource": {"fpga", "qpu"}})] * 2, [])
    assert followed.measured() == {"fluence_resources_last_load_successful": 0, "fluence_resources_changes": 0}
    assert caplog.messages == ["keeping the previous resources: resource 'fpga' belongs to another"]
    await followed.looked("", claim=claim)
    followed.asked[0][1]()
    assert followed.applied == [["fpga"]]
    assert followed.measured() == {"fluence_resources_last_load_successful": 1, "fluence_resources_changes": 1}


async def test_a_change_claims_old_and_new_resources_until_it_is_applied_or_has_failed(tmp_path: Path) -> None:
    followed, claimed = Followed(tmp_path), []

    async def claim(_: str, names: Mapping[str, Collection[str]]) -> None:
        claimed.append(set(names["resource"]))

    await followed.looked("resources: [{type: bad}]", "", FPGA, claim=claim)
    assert claimed == [{"qpu", "bad"}, {"qpu", "bad", "fpga"}]
    for _, work in followed.asked:
        work()
    claimed.clear()
    await followed.looked("resources: [{type: bad, name: x}]", "", "", claim=claim, at_once=True)
    assert claimed == [{"fpga", "x"}, {"fpga"}]
    claimed.clear()
    await followed.looked(QPU, "", "", claim=claim, at_once=True)
    assert claimed == [{"fpga", "qpu"}, {"qpu"}]


async def test_a_file_that_does_not_go_with_the_cluster_is_told_and_changes_nothing(tmp_path: Path) -> None:
    followed = Followed(tmp_path)
    await followed.looked("resources: [{type: bad}]")
    followed.asked[0][1]()
    assert followed.measured() == {"fluence_resources_last_load_successful": 0, "fluence_resources_changes": 0}


def test_a_look_takes_over_what_changed_at_once(tmp_path: Path) -> None:
    followed = Followed(tmp_path)
    followed.reload.check()
    assert followed.applied == []
    followed.rewrite(FPGA)
    followed.reload.check()
    followed.reload.check()
    assert followed.applied == [["fpga"]]
    followed.rewrite("resources: [{")
    followed.reload.check()
    assert not followed.reload.usable


def test_without_a_file_there_is_nothing_to_follow() -> None:
    reload = ResourcesReload(None, lambda _: None)
    reload.check()
    assert reload.load() is None
    assert reload.serve(Runtime(lambda *_: None, lambda: True), "fluence") is None


async def test_an_unexpected_error_is_told_by_the_metric_and_the_file_is_followed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    followed = Followed(tmp_path)
    load = ResourcesFile.load

    def fails_once(file: ResourcesFile) -> ResourcesConfig:
        monkeypatch.setattr(ResourcesFile, "load", load)
        file.read()
        raise RuntimeError("a bug")

    monkeypatch.setattr(ResourcesFile, "load", fails_once)
    await followed.looked(FPGA)
    assert followed.asked == []
    assert "a bug" in caplog.text
    assert followed.measured() == {"fluence_resources_last_load_successful": 0, "fluence_resources_changes": 0}
    await followed.looked(FPGA, QPU)
    for _, work in followed.asked:
        work()
    assert followed.applied[-1] == ["qpu"]
    assert followed.measured()["fluence_resources_last_load_successful"] == 1


async def test_an_unexpected_error_while_it_is_taken_over_is_told_by_the_metric(tmp_path: Path) -> None:
    followed = Followed(tmp_path)

    def fails(_: ResourcesConfig) -> None:
        raise RuntimeError("a bug")

    followed.reload = ResourcesReload(ResourcesFile(str(followed.path)), fails)
    followed.reload.load()
    await followed.looked(FPGA)
    with pytest.raises(RuntimeError, match="a bug"):
        followed.asked[0][1]()
    assert followed.measured() == {"fluence_resources_last_load_successful": 0, "fluence_resources_changes": 0}
