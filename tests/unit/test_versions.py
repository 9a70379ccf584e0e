"""The two distributions and the chart are released together: all have the version of pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]


def project(file: str) -> dict[str, Any]:
    values: dict[str, Any] = tomllib.loads((ROOT / file).read_text())["project"]
    return values


VERSION = project("pyproject.toml")["version"]


def test_fluxion_cy_has_the_same_version_and_is_required_in_it() -> None:
    assert project("fluxion_cy/pyproject.toml")["version"] == VERSION
    required = [each for each in project("pyproject.toml")["dependencies"] if each.startswith("fluxion-cy")]
    assert required == [f"fluxion-cy=={VERSION}"]


def test_the_chart_has_the_same_version() -> None:
    chart = yaml.safe_load((ROOT / "deploy/chart/fluence/Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)


def test_the_newest_release_of_the_changelog_is_that_version() -> None:
    newest = re.findall(r"^## \[(\d[^]]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[:1]
    assert newest in ([], [VERSION])  # none before the first release


def test_both_distributions_name_the_same_pythons_and_systems_and_their_addresses() -> None:
    one, other = project("pyproject.toml"), project("fluxion_cy/pyproject.toml")
    shared = ("Programming Language :: Python :: 3", "Operating System")
    assert [each for each in one["classifiers"] if each.startswith(shared)] == [
        each for each in other["classifiers"] if each.startswith(shared)
    ]
    assert one["urls"].keys() == other["urls"].keys() == {"Homepage", "Documentation", "Source", "Issues", "Changelog"}
    assert one["keywords"]
    assert other["keywords"]
