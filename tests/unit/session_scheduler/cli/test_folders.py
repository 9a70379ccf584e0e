"""A directory among the FILEs brings its configuration and its virtual resources."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from session_scheduler.cli import main
from session_scheduler.cli.folders import Inputs

NODE = """
apiVersion: v1
kind: Node
metadata: {name: n1}
status: {allocatable: {cpu: "4", memory: 8Gi, pods: "10"}}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: sampler}
spec:
  schedulerName: fluence
  containers: [{name: c, image: i, resources: {limits: {fluxion.flux-framework.org/qpu: 1}}}]
"""
RESOURCES = "resources: [{type: qpu, name: %s}]\n"
CONFIG = """
apiVersion: fluence.flux-framework.org/v1alpha1
kind: SchedulerConfiguration
profiles: [{schedulerName: %s}]
"""
CONFIG_MAP = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n"
FILES = {"node.yaml": NODE, "pod.yaml": POD, "resources.yaml": RESOURCES % "aurora", "README.md": "Not read: {{",
         "notes.txt": "Nor this."}  # fmt: skip


def written(folder: Path, **files: str) -> str:
    """The folder with these files; a name's dot is an underscore."""
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return str(folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "example"
    written(place)
    for name, text in FILES.items():
        (place / name).write_text(text)
    return place


def placed(capsys: pytest.CaptureFixture[str], *words: str | Path) -> dict[str, Any]:
    assert main(["simulate", *map(str, words), "-o", "json"]) == 0
    (pod,) = json.loads(capsys.readouterr().out)["pods"]
    return pod


def refused(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    assert main(list(map(str, words))) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_the_resources_of_a_directory_are_used_and_what_is_no_manifest_is_ignored(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert placed(capsys, folder)["backend"] == "aurora"


def test_an_option_wins(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(RESOURCES % "borealis")
    assert placed(capsys, folder, "--resources", other)["backend"] == "borealis"
    assert main(["simulate", str(folder), "--resources", ""]) == 1, "none at all"


def test_the_configuration_of_a_directory_is_used(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(folder, config_yaml=CONFIG % "mine", pod_yaml=POD.replace("fluence\n", "mine\n"))
    assert placed(capsys, folder)["backend"] == "aurora"
    (folder / "other").write_text(CONFIG % "theirs")
    assert main(["simulate", str(folder), "--config", str(folder / "other")]) == 2
    assert capsys.readouterr().out.splitlines()[-1] == "0 scheduled, 0 unschedulable, 1 left out"


@pytest.mark.parametrize("command", ["simulate", "explain", "status", "queues", "snapshot"])
def test_every_command_that_reads_files_takes_them(
    command: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(folder, config_yaml=CONFIG % "fluence" + "profile: []\n")
    assert f"{folder / 'config.yaml'}: profile: " in refused(capsys, command, folder)
    written(folder, config_yaml=CONFIG % "fluence", resources_yaml="resource: []\n")
    assert f"{folder / 'resources.yaml'}: resource: " in refused(capsys, command, folder)


def test_the_graph_has_the_resources_of_the_directory(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(folder, config_yaml=CONFIG % "fluence")
    assert main(["graph", str(folder)]) == 0
    paths = [one["metadata"]["paths"]["containment"] for one in json.loads(capsys.readouterr().out)["graph"]["nodes"]]
    assert [path for path in paths if path.endswith("aurora")]


@pytest.mark.parametrize(
    ("file", "text", "flag"),
    [("config.yaml", CONFIG % "fluence", "--config"), ("resources.yaml", RESOURCES % "borealis", "--resources")],
)
def test_two_directories_with_one_are_one_line_that_names_both_and_the_option(
    file: str, text: str, flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    written(one, node_yaml=NODE)
    written(two, pod_yaml=POD)
    (one / file).write_text(text)
    (two / file).write_text(text)
    expected = f"fluence: {one / file} and {two / file}: only one can be used; choose one with {flag}\n"
    assert refused(capsys, "simulate", one, two) == expected
    (two / file).unlink()
    main(["simulate", str(one), str(two)])
    assert capsys.readouterr().err == ""


def test_objects_in_files_of_these_names_are_manifests(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(folder, config_yaml=f"{CONFIG_MAP}---{NODE.replace('n1', 'n2')}", resources_yaml=CONFIG_MAP)
    assert main(["simulate", str(folder), "--add-nodes", "1xn2", "-o", "json"]) == 1
    assert "no resource tree has type 'qpu'" in json.loads(capsys.readouterr().out)["pods"][0]["reason"]


@pytest.mark.parametrize("text", [
    "{apiVersion: v1, kind: ConfigMap, metadata: {name: c}}\n",
    '{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}',
    '{\n"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "c"}\n}\n',
    "  apiVersion: v1\n  kind: ConfigMap\n  metadata: {name: c}\n",
    "# the first document is empty\n---\n---\n'kind': ConfigMap\napiVersion: v1\nmetadata: {name: c}\n",
])  # fmt: skip
@pytest.mark.parametrize("file", ["config.yaml", "resources.yaml"])
def test_an_object_is_a_manifest_in_whatever_form(file: str, text: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text(text)
    read = Inputs([str(tmp_path)], {"config.yaml": "--config", "resources.yaml": "--resources"})
    assert (read.file(file), read.manifests) == (None, [str(tmp_path)])


@pytest.mark.parametrize("text", ["", "a: [", "kind: [", "- kind: Pod\n", "a: |\n  x\nkind:\n", "a: {kind: Pod}\n"])
@pytest.mark.parametrize("file", ["config.yaml", "resources.yaml"])
def test_what_has_no_kind_or_cannot_be_parsed_is_what_its_name_says(file: str, text: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text(text)
    read = Inputs([str(tmp_path)], {"config.yaml": "--config", "resources.yaml": "--resources"})
    assert (read.file(file), read.manifests) == (tmp_path / file, [])


def test_the_resources_of_a_directory_need_no_profile_that_enables_their_plugin(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    off = CONFIG % "fluence, plugins: [{name: fluence, enabled: false}]"
    written(
        folder, config_yaml=off, pod_yaml=POD.replace(", resources: {limits: {fluxion.flux-framework.org/qpu: 1}}", "")
    )
    assert placed(capsys, folder)["backend"] is None
    assert refused(capsys, "simulate", folder, "--resources", folder / "resources.yaml") == (
        "fluence: argument resources: no profile enables the plugin fluence; add it to a profile\n"
    )


def test_named_by_itself_such_a_file_is_a_manifest(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "resources.yaml: (document 1): kind: is missing" in refused(
        capsys, "simulate", folder / "node.yaml", folder / "resources.yaml"
    )


def test_a_directory_with_nothing_else_needs_other_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = written(tmp_path / "settings", resources_yaml=RESOURCES % "aurora")
    expected = f"fluence: {settings}: the directory contains only settings; also name manifests, or a cluster\n"
    assert refused(capsys, "simulate", settings) == expected
    objects = written(tmp_path / "objects", node_yaml=NODE, pod_yaml=POD)
    assert placed(capsys, settings, objects)["backend"] == "aurora"


def test_the_help_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for file in ("config.yaml", "resources.yaml"):
        assert f"Default: {file} in a directory among the FILEs." in text
    assert main(["run", "--help"]) == 0
    assert "directory" not in capsys.readouterr().out
