"""The fixtures for plugin authors, in a separate pytest: invariants fail a test, and other tests pay nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = '''
import pytest
from session_scheduler.testing import FakeCluster, InvariantError

def lose(cluster):
    """The scheduler believes the pod elsewhere."""
    cluster.nodes(2).pod("p").schedule()
    next(iter(cluster.scheduler.cache.tasks.values())).node = "n9"

def test_whole(cluster, new_cluster):
    assert isinstance(cluster, FakeCluster)
    cluster.nodes(1).pods(3).schedule().assert_all_bound()
    new_cluster(evaluation="naive").nodes(1).pod("p").schedule().assert_bound("p", "n1")

def test_never_started(cluster):
    cluster.nodes(1)

def test_broken(cluster):
    lose(cluster)

def test_broken_in_the_second(new_cluster):
    new_cluster()
    lose(new_cluster())

def test_unchecked(new_cluster):
    lose(new_cluster(checked=False))

def test_fails_for_itself(cluster):
    lose(cluster)
    assert cluster.node_of("p") == "nowhere"

@pytest.mark.xfail(raises=InvariantError, strict=True)
def test_foreseen(cluster):
    lose(cluster)
'''
IMPORTS = """
def test_nothing_heavy_is_imported():
    import sys
    assert "session_scheduler.testing.pytest_plugin" in sys.modules
    heavy = {"numpy", "msgspec", "session_scheduler.engine.scheduler"}
    assert {"pluggy._hooks", *heavy} & set(sys.modules) == {"pluggy._hooks"}
"""


def run(folder: Path, text: str) -> str:
    """The output of pytest for a file of tests, with the plugin (once, even if it is installed, too)."""
    (folder / "test_it.py").write_text(text)
    plugin = ["-p", "no:fluence", "-p", "session_scheduler.testing.pytest_plugin", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-rA", "--rootdir", str(folder), "-c", "/dev/null", *plugin, "."]
    wide = {**os.environ, "COLUMNS": "300"}
    done = subprocess.run(command, cwd=folder, env=wide, text=True, capture_output=True, timeout=120, check=False)
    return done.stdout


def test_a_test_whose_cluster_breaks_an_invariant_fails_and_others_pass(tmp_path: Path) -> None:
    printed = run(tmp_path, TESTS)
    ends = {line.split()[1].split("::")[1]: line for line in printed.splitlines() if " test_it.py::" in line}
    assert ends["test_whole"].startswith("PASSED"), printed
    assert ends["test_never_started"].startswith("PASSED")
    assert ends["test_unchecked"].startswith("PASSED")
    finding = "InvariantError: Task(default/p, bound, n9) is counted on row"
    assert ends["test_broken"].startswith("FAILED")
    assert finding in ends["test_broken"]
    assert ends["test_broken_in_the_second"].startswith("FAILED")
    assert "nowhere" in ends["test_fails_for_itself"], "expected the test's own failure first"
    assert finding not in ends["test_fails_for_itself"]
    assert ends["test_foreseen"].startswith("XFAIL")


def test_a_test_without_the_fixtures_imports_nothing_of_the_scheduler(tmp_path: Path) -> None:
    assert "1 passed" in run(tmp_path, IMPORTS)
