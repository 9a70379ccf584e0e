"""What the manual shows works as it is shown."""

import re
from pathlib import Path

import pytest

from session_scheduler.cli import main
from session_scheduler.registry import registry
from session_scheduler.testing import FakeCluster

DOCS = Path(__file__).parents[4] / "docs"
NODES = """
apiVersion: v1
kind: List
items:
  - {apiVersion: v1, kind: Node, metadata: {name: n1}, status: {allocatable: {cpu: 4, pods: 9}}}
  - {apiVersion: v1, kind: Node, metadata: {name: n2, labels: {rack: "yes"}}, status: {allocatable: {cpu: 4, pods: 9}}}
  - {apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {schedulerName: fluence, containers: [{name: c, image: i}]}}
"""


def _blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


@pytest.fixture
def rack_label():
    """The manual's plugin."""
    (code,) = _blocks("how-to/write-a-plugin.md", "python")
    module: dict[str, object] = {}
    exec(compile(code, "rack_label.py", "exec"), module)
    return module["RackLabel"]


def test_the_plugin_of_the_manual_keeps_pods_off_nodes_without_its_label(
    rack_label, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (config,) = _blocks("how-to/write-a-plugin.md", "yaml")
    monkeypatch.setattr(registry, "_builders", {})
    registry.register_plugin_builder("rack-label", rack_label)
    (tmp_path / "cluster.yaml").write_text(NODES)
    (tmp_path / "config.yaml").write_text(config + "      - {name: fluence, enabled: false}\n")
    assert main(["explain", str(tmp_path / "cluster.yaml"), "--config", str(tmp_path / "config.yaml")]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"n1 +no +- +rack-label +node\(s\) lacked the label rack=yes; fits if n1 had the", shown)
    assert re.search(r"n2 +yes +\d+ ", shown)


def test_it_keeps_pods_waiting_where_no_node_has_the_label_until_one_has(rack_label):
    cluster = FakeCluster().use(rack_label, {"label": "rack"}).nodes(1).pod("p").schedule()
    cluster.assert_pending("p", "lacked the label rack=yes")
    cluster.node("n1", labels={"rack": "yes"}).advance(1).schedule().assert_bound("p", "n1")


@pytest.mark.parametrize(
    "command", ["simulate", "explain", "snapshot", "status", "plugins", "pool list", "pool publish"]
)
def test_the_reference_names_every_option_of_a_command(command, capsys: pytest.CaptureFixture[str]):
    assert main([*command.split(), "--help"]) == 0
    page = (DOCS / "reference/command.md").read_text()
    for option in re.findall(r"--[a-z]+(?:-[a-z]+)*", capsys.readouterr().out):
        assert option in page
