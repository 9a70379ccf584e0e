"""`make release-check`: its local checks, its list of the others, and its failure for each fault."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from ...tools.deploying import DEPLOY, VERSION, program

METADATA = """\
Metadata-Version: 2.4
Name: example
Version: 1.0
Summary: An example
License-Expression: MIT
Requires-Python: >=3.11
Classifier: Programming Language :: Python :: 3
Project-URL: Source, https://example.com/source
Keywords: example
Description-Content-Type: text/markdown

An example.
"""


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "deploy.release_check", *map(str, words)]
    return subprocess.run(command, cwd=DEPLOY.parent, capture_output=True, text=True, timeout=300, check=False)


def report(*words: str | Path) -> tuple[int, dict[str, Any]]:
    done = run(*words, "-o", "json")
    found: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, found


def wheel(folder: Path, metadata: str) -> None:
    with zipfile.ZipFile(folder / "example-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("example-1.0.dist-info/METADATA", metadata)


@pytest.mark.programs
def test_the_checks_without_a_build_pass_and_external_checks_are_listed(tmp_path: Path) -> None:
    program("helm")  # without it, the check is skipped like the others that need it
    status, found = report("--only", "versions", "dockerfile", "chart", "workflows", "--into", tmp_path)
    results = {each["name"]: each["result"] for each in found["checks"]}
    assert status == 0, found
    assert found["version"] == VERSION
    assert results == {"versions": "ok", "dockerfile": "ok", "chart": "ok", "workflows": "ok",
                       "wheels of fluxion-cy": "elsewhere", "images": "elsewhere", "pushing": "elsewhere"}  # fmt: skip
    assert [file.name for file in tmp_path.iterdir()] == [f"fluence-{VERSION}.tgz"]


def test_complete_metadata_passes(tmp_path: Path) -> None:
    wheel(tmp_path, METADATA)
    status, found = report("--only", "metadata", "--into", tmp_path)
    assert (status, found["checks"][0]["result"]) == (0, "ok"), found


@pytest.mark.parametrize(("before", "after", "fault"), [
    ("Summary: An example\n", "", "Summary: missing"),
    ("Project-URL: Source, https://example.com/source\n", "", "Project-URL: missing"),
    ("\nAn example.\n", "\n", "Description: missing"),
    ("Python :: 3", "Python :: 2.x", "Classifier: Programming Language :: Python :: 2.x is not a valid PyPI"),
    ("License-Expression: MIT", "License-Expression: Mine", "Mine"),
    ("Version: 1.0", "Version: one", "one"),
])  # fmt: skip
def test_the_check_names_metadata_that_the_index_refuses_or_shows_badly(
    tmp_path: Path, before: str, after: str, fault: str
) -> None:
    assert before in METADATA
    wheel(tmp_path, METADATA.replace(before, after))
    status, found = report("--only", "metadata", "--into", tmp_path)
    (check, *_) = found["checks"]
    assert (status, check["result"]) == (1, "failed")
    assert fault in check["detail"]


def test_the_table_names_each_check(tmp_path: Path) -> None:
    done = run("--only", "metadata", "--into", tmp_path)
    assert done.returncode == 1
    assert "found no sdist and no wheel" in done.stdout
    assert done.stderr.splitlines()[0] == "metadata: failed"
