"""Each plugin of `examples/plugins`, and each callback that it registers, alone changes the decisions of `simulate`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.framework.callbacks import Callbacks
from session_scheduler.offline.explain import explain
from session_scheduler.offline.simulate import simulate
from session_scheduler.registry import registry
from session_scheduler.server.plugin_routes import PluginRoutes
from session_scheduler.testing import FakeCluster, node, pod

from ..tools.plugin_cases import CASES, FOLDER, NAMES, NO_SHARES, QUEUES, a_node, a_pod, ended, placed, queue

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "callbacks.md"
ELSEWHERE = {"namespace-allocation-tracker", "placements-page"}
"""Covered by other tests, because they do not change a placement."""


def built(name: str) -> Any:
    module, _, cls = NAMES[name].partition(":")
    spec = util.spec_from_file_location(module, FOLDER / "src" / f"{module}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return getattr(loaded, cls)


def configuration(plugins: Mapping[str, Mapping[str, Any] | None]) -> SchedulerConfig:
    """A configuration with these plugins and their arguments; None disables one."""
    entries = [{"name": name, "args": args or {}, "enabled": args is not None} for name, args in plugins.items()]
    return SchedulerConfig.model_validate_json(json.dumps({"profiles": [{"plugins": entries}], "queues": QUEUES}))


def decided(file: Path, plugins: Mapping[str, Mapping[str, Any] | None]) -> dict[str, Any]:
    return simulate([str(file)], config=configuration(plugins))


@pytest.mark.parametrize("name", CASES)
def test_the_plugin_alone_changes_the_outcome(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, plugins, look, without, with_it = CASES[name]
    file = prepared(name, tmp_path, monkeypatch)
    beside = {plugin: args for plugin, args in plugins.items() if plugin != name}
    assert look(decided(file, beside)) == without
    assert look(decided(file, {name: {}, **plugins})) == with_it


def test_a_nominated_pod_keeps_its_seat_when_another_pod_is_tried_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    high = a_pod("high", priority=9, **queue("batch")) | {"status": {"nominatedNodeName": "n1"}}
    for plugin in ("seats", "queues-in-order"):
        monkeypatch.setitem(registry._builders, plugin, built(plugin))
    file = tmp_path / "cluster.json"
    items = [a_node("n1", "9"), high, a_pod("z", **queue("urgent"))]
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    answer = decided(file, {"seats": {}, "queues-in-order": {}, **NO_SHARES})
    assert (placed(answer), ended(answer)) == ({"high"}, set())


def prepared(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with a case's objects; prepares the registry for its plugins."""
    objects, plugins, *_ = CASES[name]
    for plugin in {name, *(other for other, args in plugins.items() if args is not None)}:
        monkeypatch.setitem(registry._builders, plugin, built(plugin))
    file = folder / "cluster.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    return file


def registered_by(name: str) -> list[str]:
    """The callbacks that a plugin's file registers."""
    module = NAMES[name].partition(":")[0]
    text = (FOLDER / "src" / f"{module}.py").read_text()
    return list(dict.fromkeys(re.findall(r"session\.((?:add|set)_\w+)\(", text)))


WITHIN = {"pod-shares": "fair-share-only", "fair-share-only": "fair-share-only"}
"""The cases of plugins that other plugins call; by default, a case has the name of its plugin."""
CALLBACKS = [(name, callback) for name in NAMES if name not in ELSEWHERE for callback in registered_by(name)]


@pytest.mark.parametrize(("name", "callback"), CALLBACKS)
def test_each_callback_of_the_plugin_alone_changes_the_outcome(
    name: str, callback: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drops the registrations of this one call and keeps the plugin's others."""
    case = WITHIN.get(name, name)
    _, plugins, look, _, with_it = CASES[case]
    file = prepared(case, tmp_path, monkeypatch)
    register = getattr(Callbacks, callback)

    def dropped(session: Any, *arguments: Any, **options: Any) -> None:
        if session._registering != name:
            register(session, *arguments, **options)

    assert look(decided(file, {case: {}, **plugins})) == with_it
    monkeypatch.setattr(Callbacks, callback, dropped)
    assert look(decided(file, {case: {}, **plugins})) != with_it


def callbacks_of_sessions() -> set[str]:
    return {name for name in vars(Callbacks) if name.startswith(("add_", "set_"))}


def test_an_example_plugin_registers_every_callback() -> None:
    shown = {callback for name in NAMES for callback in registered_by(name)}
    assert callbacks_of_sessions() == shown


def test_the_reference_names_every_callback_with_an_example_that_registers_it() -> None:
    examples = {}
    for line in REFERENCE.read_text().splitlines():
        cells = line.split("|")
        for callback in re.findall(r"`((?:add|set)_\w+)`", cells[1]) if len(cells) > 4 else ():
            examples[callback] = re.findall(r"`(\w+)\.py`", cells[4])
    assert set(examples) == callbacks_of_sessions()
    by_module = {target.partition(":")[0]: name for name, target in NAMES.items()}
    for callback, modules in examples.items():
        assert any(callback in registered_by(by_module[module]) for module in modules), callback


def test_every_plugin_has_a_case() -> None:
    assert {*CASES, *ELSEWHERE, "pod-shares"} == set(NAMES)


def test_explain_calls_pre_allocation_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._builders, "licences", built("licences"))
    file = tmp_path / "cluster.json"
    items = [a_node("n1"), a_pod("old", on="n1", licence="x"), a_pod("new", licence="x")]
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    (explained,) = explain([str(file)], config=configuration({"licences": {}}))["pods"]
    assert explained["reason"] == "1 licences needed, 0 free"


def test_the_page_shows_the_placements() -> None:
    cluster = FakeCluster()
    cluster.add(node("n1"), pod("a"), pod("b"))
    cluster.run(built("placements-page")(None))
    routes = PluginRoutes(cluster.scheduler.profiles.values())
    assert json.loads(routes("placements-page", "placements", {})[1]) == {"n1": 2}
    assert json.loads(routes("placements-page", "placements", {"node": "n2"})[1]) == {}
