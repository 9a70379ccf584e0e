"""The dashboard needs none of the packages that the image leaves out."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
CODE = """
import asyncio, sys

class LeftOut:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {packages!r}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, LeftOut())
import fluence_lab.dashboard.run
from fluence_lab import render
from fluence_lab.panels import PanelContext
from fluence_lab.views import gangs, nodes, overview, pending, plugin_timings, queues
from session_scheduler.observation.files import open_files

observer = asyncio.run(open_files([{folder!r} + "/cluster.yaml", {folder!r} + "/workloads.yaml"]))
context = PanelContext(observed=observer.observe())
views = [page.PANEL.view(context) for page in (gangs, nodes, overview, pending, plugin_timings, queues)]
for view in filter(None, views):
    render.fragments(view)
print(len(render.bokeh_script()) > 1000000)
"""
IMPORTED = {"pillow": "PIL"}


def test_every_page_renders_without_the_packages_that_the_image_leaves_out() -> None:
    found = re.search(r'ARG LEFT_OUT="([^"]+)"', (ROOT / "deploy" / "Dockerfile").read_text())
    assert found is not None
    packages = {IMPORTED.get(name, name) for name in found[1].split()}
    assert {"PIL", "tornado"} <= packages
    code = CODE.format(packages=packages, folder=str(ROOT / "examples" / "01-quickstart"))
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.stdout, ended.returncode) == ("True\n", 0), ended.stderr
