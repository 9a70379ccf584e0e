"""The hashed requirements of the image: the tested versions, all that the distribution needs, and no address."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import requires

import pytest
from deploy.lock import BUILD, BUILD_TOOLS, ROOT, RUNTIME, locked, main, runtime
from packaging.requirements import Requirement

OWN = {"fluxion-cy", "fluence-scheduler"}


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def constraints() -> dict[str, str]:
    lines = (line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines())
    return {normalised(name): version for name, version in lines}


def closure(names: Iterable[str]) -> set[str]:
    """The packages that these requirements install here."""
    found: set[str] = set()
    left = [Requirement(name) for name in names]
    while left:
        wanted = left.pop()
        extras = wanted.extras or {""}
        if wanted.marker is not None and not any(wanted.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            continue
        name = normalised(wanted.name)
        if name in OWN or (name in found and not wanted.extras):
            continue
        found.add(name)
        for line in requires(wanted.name) or ():
            needed = Requirement(line)
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                needed.marker = None
                left.append(needed)
    return found


@pytest.mark.parametrize(("file", "names"), [(RUNTIME, runtime()), (BUILD, BUILD_TOOLS)], ids=["runtime", "build"])
def test_the_lock_has_each_needed_package_in_its_tested_version(file: str, names: Iterable[str]) -> None:
    found = locked((ROOT / file).read_text())
    assert closure(names) <= found.keys()
    tested = constraints()
    differing = {name: version for name, (version, _) in found.items() if tested.get(name, version) != version}
    assert differing == {}
    assert all(hashes for _, hashes in found.values())


@pytest.mark.parametrize("file", [RUNTIME, BUILD])
def test_the_lock_names_no_index(file: str) -> None:
    assert "://" not in (ROOT / file).read_text()
    assert "index-url" not in (ROOT / file).read_text()


def test_without_uv_no_file_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SystemExit, match="install uv"):
        main()
    rule = (ROOT / "Makefile").read_text().partition("\nconstraints:")[2]
    assert rule.index("command -v uv") < rule.index("constraints.txt")
