"""The example of a dashboard's page, and that the documentation shows it as it is."""

from __future__ import annotations

import tomllib
from importlib import util
from pathlib import Path
from types import ModuleType

from fluence_lab.panels import PanelContext
from session_scheduler.observation.files import open_files

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "plugins"
FILE = FOLDER / "src" / "idle_nodes.py"


def loaded() -> ModuleType:
    spec = util.spec_from_file_location("idle_nodes", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_the_example_counts_the_nodes_without_pods() -> None:
    observer = await open_files([str(ROOT / "examples" / "01-quickstart" / "cluster.yaml")])
    view = loaded().PANEL.view(PanelContext(observed=observer.observe()))
    assert view.summary == "6 of 6 nodes run no pod."
    assert view.tables[0].rows[0][:2] == ("gpu-1", "Ready")


def test_its_package_names_the_panel_for_the_dashboard() -> None:
    project = tomllib.loads((FOLDER / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["fluence_lab.panels"] == {"idle-nodes": "idle_nodes:PANEL"}


def test_the_documentation_shows_the_example_as_it_is() -> None:
    page = (ROOT / "docs" / "how-to" / "dashboard.md").read_text()
    assert f"```python\n{FILE.read_text()}```" in page
