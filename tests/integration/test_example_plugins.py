"""Each plugin of `examples/plugins`, and each callback that it registers, alone changes what `simulate` decides."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from session_scheduler import plugin_loading
from session_scheduler.callbacks import Callbacks
from session_scheduler.config import SchedulerConfig
from session_scheduler.explain import explain
from session_scheduler.plugin_routes import PluginRoutes
from session_scheduler.simulate import simulate
from session_scheduler.testing import FakeCluster, node, pod

FOLDER = Path(__file__).parents[2] / "examples" / "plugins"
NAMES: Mapping[str, str] = tomllib.loads((FOLDER / "pyproject.toml").read_text())["project"]["entry-points"][
    "session_scheduler.plugins"
]
REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "callbacks.md"
ELSEWHERE = {"namespace-allocation-tracker", "placements-page"}
"""Shown by other tests: what they say is no placement."""


def a_node(name: str, cpu: str = "2", **labels: str) -> dict[str, Any]:
    size = {"cpu": cpu, "memory": "8Gi", "pods": "110"}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
            "status": {"allocatable": size}}  # fmt: skip


def a_pod(
    name: str, cpu: str = "1", *, on: str = "", group: str = "", priority: int = 0, **labels: str
) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "schedulerName": "fluence",
        "priority": priority,
        "containers": [{"name": "c", "image": "c", "resources": {"requests": {"cpu": cpu}}}],
    }
    if on:
        spec["nodeName"] = on
    if group:
        spec["schedulingGroup"] = {"podGroupName": group}
    metadata = {"name": name, "labels": labels, "uid": f"uid-{name}", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def a_group(name: str, needs: int | None = None) -> dict[str, Any]:
    policy = {"basic": {}} if needs is None else {"gang": {"minCount": needs}}
    return {"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup",
            "metadata": {"name": name, "creationTimestamp": "2025-01-01T00:00:00Z"},
            "spec": {"schedulingPolicy": policy}}  # fmt: skip


def running(*names: str, cpu: str = "1", on: str = "n1", **labels: str) -> list[dict[str, Any]]:
    return [a_pod(name, cpu, on=on, priority=1, **labels) for name in names]


def ended(answer: Mapping[str, Any]) -> set[str]:
    return {one["name"] for one in answer.get("preempted", ())}


def nodes_of(answer: Mapping[str, Any]) -> dict[str, str | None]:
    return {one["name"]: one["node"] for one in answer["pods"]}


def placed(answer: Mapping[str, Any]) -> set[str]:
    return {name for name, on in nodes_of(answer).items() if on}


QUEUES = [{"name": "batch", "deserved": {"cpu": 2}}, {"name": "urgent", "deserved": {"cpu": 2}}]
TO_COME = {"add_gpu_order", "add_sub_group_order"}
"""Nothing asks these yet but other plugins."""
NO_SHARES = {"Proportion": None}
"""Else it orders queues, and says what they have, before the examples are asked."""
QUEUE_LABEL = "fluence.flux-framework.org/queue"
KEPT = {"fluence.flux-framework.org/preemptibility": "non-preemptible"}
SPOT = {"kai.scheduler/instance-type": "spot"}
ZONE = "topology.kubernetes.io/zone"
CASES: dict[str, tuple[list[Any], dict[str, Any], Callable[[Mapping[str, Any]], Any], Any, Any]] = {
    "leader-first": (
        [a_node("n1", "1"), a_group("g"), a_pod("a", group="g"), a_pod("z", group="g", role="leader")], {},
        placed, {"a"}, {"z"},
    ),
    "queues-in-order": (
        [a_node("n1", "1"), a_pod("a", **{QUEUE_LABEL: "batch"}), a_pod("b", **{QUEUE_LABEL: "urgent"})],
        NO_SHARES,
        placed, {"a"}, {"b"},
    ),
    "small-first": (
        [a_node("n1"), a_group("a", 2), a_pod("a-0", group="a"), a_pod("a-1", group="a"),
         a_pod("z")], {},
        placed, {"a-0", "a-1"}, {"z"},
    ),
    "first-by-name": (
        [*(a_node(f"n{index}") for index in range(9)), a_pod("a"), a_pod("b", "2")], {"fluence": None},
        lambda answer: set(nodes_of(answer).values()) == {"n0", "n1"}, False, True,
    ),
    "teams-only": ([a_node("n1"), a_pod("a"), a_pod("b", team="x")], {}, placed, {"a", "b"}, {"b"}),
    "licences": (
        [a_node("n1", "4"), a_pod("a", licence="x"), a_pod("b", licence="x"), a_pod("c")], {},
        placed, {"a", "b", "c"}, {"a", "c"},
    ),
    "one-rack": (
        [a_node("n1", "1", rack="a"), a_node("n2", "1", rack="b"), a_group("g", 2), a_pod("a", group="g"),
         a_pod("b", group="g")], {},
        placed, {"a", "b"}, set(),
    ),
    "kept-pods": (
        [a_node("n1", "1"), *running("low", keep="yes"), a_pod("high", priority=9)], {}, ended, {"low"}, set(),
    ),
    "few-victims": (
        [a_node("n1"), *running("x", "y"), a_pod("high", "2", priority=9)], {}, ended, {"x", "y"}, set(),
    ),
    "seats": (
        [a_node("n1", "4"), *running("low"), a_pod("high", priority=9), a_pod("z")], {},
        lambda answer: (ended(answer), placed(answer)), (set(), {"high", "z"}), ({"low"}, {"high"}),
    ),
    "zone-annotation": (
        [a_node("n1", **{ZONE: "east"}), a_pod("a")], {},
        lambda answer: answer["pods"][0].get("zone"), None, "east",
    ),
    "fair-share-only": (
        [a_node("n1", "4"), a_pod("a"), a_pod("b"), a_pod("c")], NO_SHARES | {"pod-shares": {"pods": {"default": 2}}},
        placed, {"a", "b", "c"}, {"a", "b"},
    ),
    "most-per-team": (
        [a_node("n1", "2"), *running("low"), a_pod("a", team="x", priority=9), a_pod("b", team="x", priority=9)], {},
        lambda answer: (ended(answer), placed(answer)), ({"low"}, {"a", "b"}), (set(), {"a"}),
    ),
    "queues-kept": (
        [a_node("n1", "3"), *running("x", "y", "z", **{QUEUE_LABEL: "batch"}), a_pod("a", **{QUEUE_LABEL: "urgent"})],
        {"queues-kept": {"queues": ["batch"]}},
        lambda answer: len(ended(answer)), 1, 0,
    ),
    "gangs-kept-whole": (
        [a_node("n1", "3"), a_group("g", 3),
         *(a_pod(name, on="n1", group="g", **{QUEUE_LABEL: "batch"}) for name in "xyz"),
         a_pod("a", **{QUEUE_LABEL: "urgent"})], {},
        lambda answer: len(ended(answer)), 1, 0,
    ),
    "spot-instance-manager": (
        [a_node("n1", "1"), a_node("n2", "3", **SPOT), a_pod("a"), a_pod("b", **KEPT)], {},
        nodes_of, {"a": "n2", "b": "n2"}, {"a": "n1", "b": None},
    ),
}  # fmt: skip


def built(name: str) -> Any:
    module, _, cls = NAMES[name].partition(":")
    spec = util.spec_from_file_location(module, FOLDER / "src" / f"{module}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return getattr(loaded, cls)


def configuration(plugins: Mapping[str, Mapping[str, Any] | None]) -> SchedulerConfig:
    """With these plugins and their arguments; None switches one off."""
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


def prepared(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with a case's objects; its plugins can be named."""
    objects, plugins, *_ = CASES[name]
    for plugin in {name, *(other for other, args in plugins.items() if args is not None)}:
        monkeypatch.setitem(plugin_loading._builders, plugin, built(plugin))
    file = folder / "cluster.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    return file


def registered_by(name: str) -> list[str]:
    """The callbacks that a plugin's file registers."""
    module = NAMES[name].partition(":")[0]
    text = (FOLDER / "src" / f"{module}.py").read_text()
    return list(dict.fromkeys(re.findall(r"session\.((?:add|set)_\w+)\(", text)))


WITHIN = {"pod-shares": "fair-share-only", "fair-share-only": "fair-share-only"}
"""The cases of plugins that answer others; a case has the name of its plugin where nothing stands here."""
OF_KEPT_PODS = [a_node("n1", "4"), *(a_pod(name, **KEPT) for name in "abc")]
CALLBACKS = [(name, callback) for name in NAMES if name not in ELSEWHERE for callback in registered_by(name)]


@pytest.mark.parametrize(("name", "callback"), CALLBACKS)
def test_each_callback_of_the_plugin_alone_changes_the_outcome(
    name: str, callback: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it registers with this one call is dropped; all else of it stays."""
    case = WITHIN.get(name, name)
    _, plugins, look, _, with_it = CASES[case]
    file = prepared(case, tmp_path, monkeypatch)
    if callback == "add_queue_deserved":
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": OF_KEPT_PODS}))
    register = getattr(Callbacks, callback)

    def dropped(session: Any, *arguments: Any, **options: Any) -> None:
        if session._registering != name:
            register(session, *arguments, **options)

    assert look(decided(file, {case: {}, **plugins})) == with_it
    monkeypatch.setattr(Callbacks, callback, dropped)
    assert look(decided(file, {case: {}, **plugins})) != with_it


def callbacks_of_sessions() -> set[str]:
    return {name for name in vars(Callbacks) if name.startswith(("add_", "set_"))}


def test_every_callback_is_shown_by_a_plugin() -> None:
    shown = {callback for name in NAMES for callback in registered_by(name)}
    assert callbacks_of_sessions() - TO_COME == shown - TO_COME


def test_the_reference_names_every_callback_with_an_example_that_registers_it() -> None:
    told = {}
    for line in REFERENCE.read_text().splitlines():
        cells = line.split("|")
        for callback in re.findall(r"`((?:add|set)_\w+)`", cells[1]) if len(cells) > 4 else ():
            told[callback] = re.findall(r"`(\w+)\.py`", cells[4])
    assert set(told) == callbacks_of_sessions()
    by_module = {target.partition(":")[0]: name for name, target in NAMES.items()}
    for callback, modules in told.items():
        if callback not in TO_COME:
            assert any(callback in registered_by(by_module[module]) for module in modules), callback


def test_every_plugin_is_shown() -> None:
    assert {*CASES, *ELSEWHERE, "pod-shares"} == set(NAMES)


def test_explain_asks_pre_allocation_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(plugin_loading._builders, "licences", built("licences"))
    file = tmp_path / "cluster.json"
    items = [a_node("n1"), a_pod("old", on="n1", licence="x"), a_pod("new", licence="x")]
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    (told,) = explain([str(file)], config=configuration({"licences": {}}))["pods"]
    assert told["reason"] == "1 licences are needed, 0 are free"


def test_the_page_tells_what_was_placed() -> None:
    cluster = FakeCluster()
    cluster.add(node("n1"), pod("a"), pod("b"))
    cluster.run(built("placements-page")(None))
    routes = PluginRoutes(cluster.scheduler.profiles.values())
    assert json.loads(routes("placements-page", "placements", {})[1]) == {"n1": 2}
    assert json.loads(routes("placements-page", "placements", {"node": "n2"})[1]) == {}
