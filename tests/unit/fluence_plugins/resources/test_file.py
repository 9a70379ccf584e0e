from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from fluence_plugins.resources.config import ResourcesConfig, resource_types
from fluence_plugins.resources.errors import ResourcesError
from fluence_plugins.resources.file import CAPACITY_ENV, RESOURCES_ENV, ResourcesFile, capacity
from session_scheduler.errors import FluenceError

QPU = "resources: [{type: qpu}]"
FPGA = "resources: [{type: fpga}]"


class Steps:
    """A sleep that does the next step instead of taking time; after the last step it takes forever."""

    def __init__(self, *steps: object) -> None:
        self._steps = list(steps)

    async def __call__(self, _seconds: float) -> None:
        if not self._steps:
            await asyncio.Event().wait()
        step = self._steps.pop(0)
        if callable(step):
            step()
        await asyncio.sleep(0)


def mounted(folder: Path, number: int, text: str) -> Path:
    """A file as a kubelet mounts a ConfigMap: a link to a folder that is replaced as a whole."""
    version = folder / f"..{number}"
    version.mkdir(parents=True)
    (version / "resources.yaml").write_text(text)
    new = folder / "..new"
    new.symlink_to(version.name)
    os.replace(new, folder / "..data")
    path = folder / "resources.yaml"
    if not path.is_symlink():
        path.symlink_to("..data/resources.yaml")
    return path


async def seen(file: ResourcesFile, steps: Steps, count: int, failed: list[FluenceError]) -> list[list[str]]:
    found = []
    async with asyncio.timeout(5):
        async for config in file.changes(failed.append, sleep=steps):
            found.append(resource_types(config))
            if len(found) == count:
                break
    return found


async def test_a_replaced_mount_is_seen_and_an_unchanged_one_is_not(tmp_path: Path) -> None:
    path = mounted(tmp_path, 1, QPU)
    file = ResourcesFile(str(path))
    assert resource_types(file.load()) == ["qpu"]
    steps = Steps(None, lambda: mounted(tmp_path, 2, FPGA), None, lambda: mounted(tmp_path, 3, QPU))
    assert await seen(file, steps, 2, []) == [["fpga"], ["qpu"]]


async def test_a_file_that_cannot_be_used_is_told_once_and_the_next_good_one_holds(tmp_path: Path) -> None:
    path = mounted(tmp_path, 1, QPU)
    file = ResourcesFile(str(path))
    file.load()
    failed: list[FluenceError] = []
    steps = Steps(lambda: mounted(tmp_path, 2, "resources: 3"), None, None, lambda: mounted(tmp_path, 3, FPGA))
    assert await seen(file, steps, 1, failed) == [["fpga"]]
    (error,) = failed
    assert str(path) in str(error)


async def test_a_file_from_the_environment_may_come_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "resources.yaml"
    monkeypatch.setenv(RESOURCES_ENV, str(path))
    file = ResourcesFile.configured()
    assert file is not None
    assert file.load() == ResourcesConfig()
    steps = Steps(lambda: path.write_text(QPU), None, path.unlink)
    assert await seen(file, steps, 2, []) == [["qpu"], []]


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    file = ResourcesFile.configured(str(tmp_path / "none.yaml"))
    assert file is not None
    with pytest.raises(ResourcesError, match=r"none\.yaml: cannot be read \(No such file"):
        file.load()


def test_without_a_name_there_is_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RESOURCES_ENV, raising=False)
    assert ResourcesFile.configured() is None


@pytest.mark.parametrize(("content", "why"), [(b"\xff\xfe", "not UTF-8"), (None, "Is a directory")])
def test_what_is_no_text_is_refused_by_name(tmp_path: Path, content: bytes | None, why: str) -> None:
    path = tmp_path / "resources.yaml"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(ResourcesError, match=rf"resources\.yaml: cannot be read \(.*{why}"):
        ResourcesFile(str(path)).load()


@pytest.mark.parametrize("text", ["0", "-1", "x", "", "²", "2147483648", "9" * 5000])
def test_a_capacity_that_no_node_can_have_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CAPACITY_ENV, text)
    with pytest.raises(ResourcesError, match=CAPACITY_ENV):
        capacity()


def test_the_capacity_is_1000_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CAPACITY_ENV, raising=False)
    assert capacity() == 1000
    monkeypatch.setenv(CAPACITY_ENV, "7")
    assert capacity() == 7
