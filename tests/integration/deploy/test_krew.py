"""The krew plugin: its manifest, and the script that it installs."""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path

import yaml

from ...tools.deploying import DEPLOY

KREW = DEPLOY / "krew"
VERSION = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]["version"]
#: Replaces Python: it logs its arguments, and `-m venv` creates an environment whose programs log theirs.
PYTHON = """#!/bin/sh
echo "$0 $*" >> LOG
[ "$1" != -c ] || exit STATUS
if [ "$2" = venv ]; then mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; cp "$0" "$3/bin/kubectl-fluence"; fi
"""


def test_the_manifest_names_the_script_and_the_release_for_each_platform_with_wheels() -> None:
    manifest = yaml.safe_load((KREW / "fluence.yaml").read_text())
    spec = manifest["spec"]
    assert (manifest["metadata"]["name"], spec["version"]) == ("fluence", f"v{VERSION}")
    platforms = [tuple(each["selector"]["matchLabels"].values()) for each in spec["platforms"]]
    assert platforms == [("linux", "amd64"), ("linux", "arm64"), ("darwin", "arm64")]
    for each in spec["platforms"]:
        assert f"/v{VERSION}/" in each["uri"]
        assert len(each["sha256"]) == 64
        assert os.access(KREW / each["bin"], os.X_OK)
    assert len(spec["shortDescription"]) <= 50


class Plugin:
    """The script as krew installs it: in its own folder, called through a link."""

    def __init__(self, folder: Path, status: int = 0) -> None:
        self.log = folder / "log"
        self.store = folder / "store"
        self.store.mkdir()
        (self.store / "kubectl-fluence").write_bytes((KREW / "kubectl-fluence").read_bytes())
        (self.store / "kubectl-fluence").chmod(0o755)
        self.link = folder / "kubectl-fluence"
        self.link.symlink_to(self.store / "kubectl-fluence")
        self.python = folder / "python"
        self.python.write_text(PYTHON.replace("LOG", str(self.log)).replace("STATUS", str(status)))
        self.python.chmod(0o755)

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "FLUENCE_PYTHON": str(self.python)}
        return subprocess.run([self.link, *words], env=environment, text=True, capture_output=True, check=False)

    def calls(self) -> list[str]:
        return self.log.read_text().splitlines()


def test_the_first_call_installs_the_release_and_each_call_passes_its_arguments(tmp_path: Path) -> None:
    plugin = Plugin(tmp_path)
    first, second = plugin.call("explain", "pod/x", "-n", "two words"), plugin.call("status")
    assert (first.returncode, first.stdout, second.returncode, second.stderr) == (0, "", 0, "")
    home = plugin.store / "environment"
    install = "-m pip --disable-pip-version-check --quiet install --only-binary fluxion-cy"
    assert plugin.calls()[1:] == [
        f"{plugin.python} -m venv {home}",
        f"{home}/bin/python {install} fluence-scheduler[all]=={VERSION}",
        f"{home}/bin/kubectl-fluence explain pod/x -n two words",
        f"{home}/bin/kubectl-fluence status",
    ]


def test_an_old_python_is_refused_in_one_line(tmp_path: Path) -> None:
    plugin = Plugin(tmp_path, status=1)
    done = plugin.call("status")
    assert done.returncode == 2
    remedy = "set FLUENCE_PYTHON to a newer interpreter"
    assert done.stderr == f"kubectl-fluence: {plugin.python} is not Python 3.11 or later; {remedy}\n"
    assert not (plugin.store / "environment").exists()
