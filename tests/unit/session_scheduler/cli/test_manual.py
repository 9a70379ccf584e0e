"""What the manual shows works as it is shown."""

import re
from pathlib import Path

import pytest

from session_scheduler.cli import main
from session_scheduler.registry import registry
from session_scheduler.testing import FakeCluster

from ....tools.attempts import Attempts
from ....tools.observing import observe

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


def _classes() -> dict[str, type]:
    """The manual's plugins, by the names of their classes."""
    found: dict[str, type] = {}
    for number, code in enumerate(_blocks("how-to/write-a-plugin.md", "python")):
        module: dict[str, type] = {}
        exec(compile(code, f"plugin_{number}.py", "exec"), module)
        found.update((name, value) for name, value in module.items() if hasattr(value, "api_version"))
    return found


CLASSES = _classes()


@pytest.fixture
def rack_label():
    """The manual's first plugin."""
    return CLASSES["RackLabel"]


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
    assert re.search(r"n1 +no +- +rack-label +node\(s\) lacked the label rack=yes; would fit if n1 had the", shown)
    assert re.search(r"n2 +yes +\d+ ", shown)


def test_it_keeps_pods_waiting_where_no_node_has_the_label_until_one_has(rack_label):
    cluster = FakeCluster().use(rack_label, {"label": "rack"}).nodes(1).pod("p").schedule()
    cluster.assert_pending("p", "lacked the label rack=yes")
    cluster.node("n1", labels={"rack": "yes"}).advance(1).schedule().assert_bound("p", "n1")


def test_pods_whose_class_keys_differ_go_to_racks_of_their_own():
    cluster = FakeCluster().use(CLASSES["RackAnnotation"])
    cluster.node("n1", labels={"rack": "a"}).node("n2", labels={"rack": "b"})
    for name, rack in (("to-a", "a"), ("to-b", "b"), ("to-c", "c")):
        cluster.pod(name, annotations={"example.com/rack": rack})
    cluster.schedule().assert_bound("to-a", "n1").assert_bound("to-b", "n2").assert_pending("to-c")


def test_a_group_that_is_refused_until_the_evening_starts_then():
    cluster = FakeCluster().use(CLASSES["NightOnly"]).nodes(1)
    cluster.advance(12 * 3600).pod("p", namespace="batch").pod("q").schedule().assert_bound("q")
    cluster.assert_pending("p", reason="the namespace batch starts pods at night only", namespace="batch")
    cluster.advance(8 * 3600 + 1).schedule().assert_bound("p", namespace="batch")


@pytest.mark.parametrize(
    "command", ["simulate", "explain", "snapshot", "status", "plugins", "pool list", "pool publish"]
)
def test_the_reference_names_every_option_of_a_command(command, capsys: pytest.CaptureFixture[str]):
    assert main([*command.split(), "--help"]) == 0
    page = (DOCS / "reference/command.md").read_text()
    for option in re.findall(r"--[a-z]+(?:-[a-z]+)*", capsys.readouterr().out):
        assert option in page


def test_licences_that_become_free_retry_as_many_pods_as_they_suffice_for():
    one, both = {"example.com/licence": 1}, {"example.com/licence": 2}
    cluster = FakeCluster().without("NodeResourcesFit").use(CLASSES["Licences"])
    cluster.node("n1", offers=both).pod("large", requests=both, priority=1)
    cluster.pods(9, requests=one).run()
    cluster.assert_bound("large", "n1").advance(11).end("large")
    attempts = observe(cluster.scheduler, Attempts())
    cluster.run()
    assert attempts.of == {"p-0": 1, "p-1": 1}
