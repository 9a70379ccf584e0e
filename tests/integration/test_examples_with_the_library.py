"""With Fluxion's library, the examples place the same pods as with the embedded engine.

The library receives no scores, so the nodes may differ, but not the set of placed pods.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.tools.real_engine import LIBRARIES, use

from session_scheduler.config.parsing import validated
from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.errors import InputError
from session_scheduler.offline.simulate import place_all
from session_scheduler.offline.state import open_state, read_state

EXAMPLES = Path(__file__).parents[2] / "examples"
ONLY_EMBEDDED = ("cpuAccounting", "windows")
FOLDERS = sorted(path.parent for path in EXAMPLES.glob("*/cluster.yaml"))


def config_of(folder: Path, **more: Any) -> SchedulerConfig:
    """The example's own configuration, with more arguments of the plugin."""
    file = folder / "config.yaml"
    document = yaml.safe_load(file.read_text()) if file.exists() else {}
    arguments = more
    if (folder / "resources.yaml").exists():
        arguments = {"resources": str(folder / "resources.yaml"), **more}
    head = {"apiVersion": "fluence.flux-framework.org/v1alpha1", "kind": "SchedulerConfiguration", "profiles": [{}]}
    document = {**head, **document}
    for profile in document["profiles"]:
        plugins = {plugin["name"]: plugin for plugin in profile.get("plugins", ())}
        own = plugins.setdefault("fluence", {"name": "fluence"})
        own["args"] = {**own.get("args", {}), **arguments}
        profile["plugins"] = list(plugins.values())
    return validated(SchedulerConfig, {key: document[key] for key in document}, "config.yaml")


def lacking_in(folder: Path) -> str | None:
    """A field of the example's files that only the embedded engine supports."""
    files = (folder / "config.yaml", folder / "resources.yaml")
    text = "".join(file.read_text() for file in files if file.exists())
    return next((field for field in ONLY_EMBEDDED if f"{field}:" in text), None)


def manifests_of(folder: Path) -> list[str]:
    return [str(file) for file in sorted(folder.glob("*.yaml")) if file.name not in ("config.yaml", "resources.yaml")]


async def result_of(folder: Path, config: SchedulerConfig) -> dict[str, Any]:
    state = await read_state(manifests_of(folder))
    return await place_all(await open_state(state, config))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
async def test_each_example_places_the_same_pods_with_both_engines(
    folder: Path, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(library, monkeypatch)
    lacking = lacking_in(folder)
    if lacking is not None:
        with pytest.raises(InputError, match=rf"{lacking}: .*engine: reapi"):
            await result_of(folder, config_of(folder, engine="reapi"))
        return
    found = await result_of(folder, config_of(folder, engine="reapi"))
    expected = await result_of(folder, config_of(folder))
    assert found["summary"] == expected["summary"]
    placed = [{(pod["namespace"], pod["name"]) for pod in one["pods"] if pod["node"]} for one in (found, expected)]
    assert placed[0] == placed[1]
    assert found["groups"] == expected["groups"]
    assert {pod["name"]: pod["backend"] for pod in found["pods"]} == {
        pod["name"]: pod["backend"] for pod in expected["pods"]
    }
