"""The arguments that choose the engine: an error at the start names the field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.tools.real_engine import LIBRARIES, VARIABLE, use

from fluence_plugins.fluence.arguments import FluenceArguments
from fluence_plugins.fluence.plugin import FluencePlugin
from fluence_plugins.resources.config import load_resources
from fluence_plugins.resources.errors import ResourcesError
from session_scheduler.builtin import BUILTIN
from session_scheduler.config.parsing import validated
from session_scheduler.config.settings import config_from
from session_scheduler.errors import InputError
from session_scheduler.registry.registry import Registry

WINDOWS = """
resources: [{type: qpu, name: aurora}]
windows: [{backends: [aurora], start: 2026-11-23T08:00:00Z, end: 2026-11-23T12:00:00Z}]
"""


def arguments(**given: Any) -> FluenceArguments:
    return validated(FluenceArguments, given, "config.yaml", "args")


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"memoryChunk": "2Gi"}, "args.memoryChunk: has no effect with `engine: embedded`"),
        ({"library": "/lib/x.so"}, "args.library: has no effect with `engine: embedded`"),
        (
            {"engine": "reapi", "memoryChunk": "1.5Mi"},
            "args.memoryChunk: expected 1Mi to 1Pi in whole MiB, got 1.5Mi; use 1Gi",
        ),
        ({"engine": "reapi", "memoryChunk": 0}, "args.memoryChunk: expected 1Mi to 1Pi in whole MiB, got 0; use 1Gi"),
        (
            {"engine": "reapi", "memoryChunk": "2Pi"},
            "args.memoryChunk: expected 1Mi to 1Pi in whole MiB, got 2Pi; use 1Gi",
        ),
        ({"engine": "reapi", "memoryChunk": "much"}, "args.memoryChunk: 'much' is not a valid quantity"),
        (
            {"engine": "reapi", "cpuAccounting": "millicores"},
            "args.cpuAccounting: is not supported with `engine: reapi`",
        ),
        ({"engine": "reapi", "library": ""}, "args.library: "),
        ({"engine": "fluxion"}, "args.engine: "),
    ],
)
def test_what_does_not_go_with_the_engine_is_named(given: dict[str, Any], error: str) -> None:
    with pytest.raises(InputError, match=error.replace(".", r"\.")):
        arguments(**given)


def test_memory_is_exact_with_the_embedded_engine_and_in_chunks_with_the_library() -> None:
    requests, allocatable = {"memory": (1 << 30) + 1}, {"memory": (7 << 30) - 1}
    for given, shape, host in (
        ({}, 1025, 7167),
        ({"engine": "reapi"}, 2048, 6144),
        ({"engine": "reapi", "memoryChunk": "512Mi"}, 1536, 6656),
        ({"engine": "reapi", "memoryChunk": 3 << 30}, 3072, 6144),
    ):
        accounting = arguments(**given).accounting
        assert accounting.shape_of(requests).memory_mib == shape
        assert accounting.host_of("n1", allocatable).memory_mib == host
        load = accounting.load_of([requests, {"memory": 1}])
        assert load is not None
        assert load[1] == shape


def test_the_error_for_a_missing_library_names_its_field(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = str(tmp_path / "libreapi_cli.so")
    with pytest.raises(ResourcesError, match=r"^library: .*cannot be opened.*choose `engine: embedded`") as found:
        FluencePlugin(arguments(engine="reapi", library=path))
    assert "\n" not in str(found.value)
    monkeypatch.setenv(VARIABLE, path)
    with pytest.raises(ResourcesError, match=r"^engine: .*cannot be opened"):
        FluencePlugin(arguments(engine="reapi"))


@pytest.mark.parametrize("library", LIBRARIES)
def test_what_only_the_embedded_engine_has_is_refused(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use(library, monkeypatch)
    with pytest.raises(ResourcesError, match=r"^matchPolicy .*policy='pack'"):
        FluencePlugin(arguments(engine="reapi", matchPolicy="pack"))
    with pytest.raises(ResourcesError, match=r"^windows: are not supported with `engine: reapi`"):
        FluencePlugin(arguments(engine="reapi", resourcesText=WINDOWS))
    plugin = FluencePlugin(arguments(engine="reapi", resourcesText="resources: [{type: qpu, name: aurora}]"))
    with pytest.raises(ResourcesError, match=r"^windows: "):
        plugin.set_resources(load_resources(WINDOWS, "resources.yaml"))
    assert set(plugin.live.graph.virtual) == {"/cluster/aurora"}


def test_the_action_that_reserves_by_time_is_refused_with_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    use("stand-in", monkeypatch)
    text = "{{actions: [allocate, backfill], profiles: [{{plugins: [{{name: fluence, args: {{engine: {}}}}}]}}]}}"
    head = "apiVersion: fluence.flux-framework.org/v1alpha1\nkind: SchedulerConfiguration\n"
    for engine in ("embedded", "reapi"):
        given = yaml.safe_load(head) | yaml.safe_load(text.format(engine))
        config = config_from(given, "config.yaml")
        if engine == "embedded":
            Registry(BUILTIN).load_profiles(config)
            continue
        with pytest.raises(InputError, match=r"^config\.yaml: actions\[1\]: backfill .*choose 'engine: embedded'"):
            Registry(BUILTIN).load_profiles(config)


def test_a_snapshot_knows_the_library_that_the_environment_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/opt/libreapi_cli.so")
    assert arguments(engine="reapi").saved()["library"] == "/opt/libreapi_cli.so"
    assert arguments(engine="reapi", library="/lib/x.so").saved()["library"] == "/lib/x.so"
    assert "library" not in arguments().saved()
