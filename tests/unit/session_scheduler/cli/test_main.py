import asyncio
import json
import re
import sys
from pathlib import Path

import pytest
import yaml

from session_scheduler import cli, hookimpl
from session_scheduler.cli import commands, main
from session_scheduler.errors import InputError
from session_scheduler.framework.failures import failure_log
from session_scheduler.registry import registry

MANIFESTS = """
apiVersion: v1
kind: Node
metadata: {name: n1}
status: {allocatable: {cpu: "4", memory: 8Gi, pods: "10"}}
---
apiVersion: v1
kind: Pod
metadata: {name: small, namespace: a}
spec:
  schedulerName: fluence
  containers: [{name: c, image: i, resources: {requests: {cpu: "1"}}}]
"""
TOO_LARGE = MANIFESTS.replace('requests: {cpu: "1"}', 'requests: {cpu: "9"}')
CONFIG = """
apiVersion: fluence.flux-framework.org/v1alpha1
kind: SchedulerConfiguration
profiles: [{plugins: [{name: fluence, enabled: false}]}]
"""


@pytest.fixture
def files(tmp_path: Path):
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "fits.yaml").write_text(MANIFESTS)
    (tmp_path / "large.yaml").write_text(TOO_LARGE)
    return tmp_path


def _run(files, command, name, *options):
    return main([command, str(files / name), "--config", str(files / "config.yaml"), *options])


# ------------------------------------------------------------------ results


def test_simulate_ends_with_0_where_everything_is_placed_and_shows_the_node(files, capsys: pytest.CaptureFixture[str]):
    assert _run(files, "simulate", "fits.yaml") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["NAMESPACE", "POD", "GROUP", "NODE", "REASON"]
    assert lines[1].split() == ["a", "small", "-", "n1", "-"]
    assert lines[-1] == "1 scheduled, 0 unschedulable, 0 left out"


def test_simulate_ends_with_1_where_something_is_unschedulable_and_says_why(files, capsys: pytest.CaptureFixture[str]):
    assert _run(files, "simulate", "large.yaml") == 1
    assert "0/1 nodes are available: 1 Insufficient cpu." in capsys.readouterr().out


@pytest.mark.parametrize(("output", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_results_are_readable_by_machines(files, capsys: pytest.CaptureFixture[str], output, read):
    assert _run(files, "simulate", "fits.yaml", "-o", output) == 0
    result = read(capsys.readouterr().out)
    assert [(pod["namespace"], pod["name"], pod["node"]) for pod in result["pods"]] == [("a", "small", "n1")]
    assert result["summary"]["scheduled"] == 1


def test_explain_ends_with_0_and_names_the_plugin_that_refuses_a_node(files, capsys: pytest.CaptureFixture[str]):
    assert _run(files, "explain", "large.yaml") == 0
    assert "n1    no        -  NodeResourcesFit  Insufficient cpu" in capsys.readouterr().out


def test_explain_judges_only_the_pod_that_is_named(files, capsys: pytest.CaptureFixture[str]):
    assert _run(files, "explain", "fits.yaml", "--pod", "a/small", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["pods"][0]["nodes"]["n1"]["fits"] is True
    assert _run(files, "explain", "fits.yaml", "--pod", "a/other") == 2
    assert "--pod a/other" in capsys.readouterr().err


def test_plugins_lists_the_built_in_ones(capsys: pytest.CaptureFixture[str]):
    assert main(["plugins", "-o", "json"]) == 0
    names = [plugin["name"] for plugin in json.loads(capsys.readouterr().out)["plugins"]]
    assert "NodeResourcesFit" in names
    assert main(["plugins"]) == 0
    assert capsys.readouterr().out.split()[:3] == ["BUILT-IN", "SUMMARY", "DefaultPreemption"]


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["simulate"], "Missing argument 'FILE'"),
        (["nothing"], "No such command 'nothing'"),
        (["simulate", "--nothing", "x"], "No such option: --nothing. See fluence --help."),
        (["simulate", "--debug", "x"], "No such option: --debug. Write --debug before the command."),
        (["simulate", "-o", "xml", "x"], "Invalid value for '-o' / '--output': 'xml' is not one of 'table', 'json'"),
        (["snapshot", "-o", "yml", "x"], "-o yml: unknown format; use yaml, json or a file such as now.yaml"),
        (["simulate", "no-such-file.yaml"], "no-such-file.yaml: "),
        (["simulate", "x.yaml", "--config", "no-such-config.yaml"], "no-such-config.yaml: cannot be read"),
    ],
)
def test_bad_input_ends_with_2_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments, text
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(CONFIG)
    if arguments[-1] == "no-such-file.yaml":
        arguments = [*arguments, "--config", "config.yaml"]
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("fluence: ")
    assert text in line


TOO_LONG = "x" * 300
"""A name for which every system call fails, also for root; as for a file in a directory without permission."""


@pytest.mark.parametrize(
    "arguments",
    [
        ["simulate", TOO_LONG],
        ["simulate", "fits.yaml", "--add-nodes", TOO_LONG],
        ["simulate", "fits.yaml", "--add-nodes", f"2x{TOO_LONG}"],
        ["simulate", "fits.yaml", "--config", TOO_LONG],
        ["simulate", "fits.yaml", "--resources", TOO_LONG],
        ["simulate", "fits.yaml", "--html", f"{TOO_LONG}/report.html"],
        ["explain", f"pod/{TOO_LONG}", "fits.yaml"],
        ["status", TOO_LONG],
        ["queues", "--kubeconfig", TOO_LONG],
        ["snapshot", "fits.yaml", "-o", f"{TOO_LONG}.json"],
        ["graph", TOO_LONG],
        ["dashboard", TOO_LONG],
        ["dashboard", f"{TOO_LONG}.json"],
        ["plugins", "new", "rack-label", "--directory", TOO_LONG],
    ],
    ids=lambda words: " ".join(words).replace(TOO_LONG, "LONG"),
)
def test_a_path_that_the_system_rejects_is_bad_input(
    files, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments
):
    monkeypatch.chdir(files)
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert TOO_LONG[:8] in line
    assert "internal error" not in line


def test_every_wrong_field_of_a_configuration_has_its_line(files, capsys: pytest.CaptureFixture[str]):
    (files / "config.yaml").write_text(CONFIG + "sede: 1\nactions: []\n")
    assert _run(files, "simulate", "fits.yaml") == 2
    assert [line.split(": ")[2] for line in capsys.readouterr().err.splitlines()] == ["actions", "sede"]


def test_control_characters_of_a_message_do_not_reach_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(cli, "_run", _raising(InputError("a\x1b[31mb\nc")))
    assert main(["x"]) == 2
    assert capsys.readouterr().err == "fluence: a [31mb c\n"


def test_a_fault_of_fluence_is_one_line_and_its_traceback_is_shown_on_demand(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(cli, "_run", _raising(KeyError("x")))
    assert main(["simulate", "f"]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "fluence: internal error: KeyError: 'x'; please report it with the output of --debug"
    with pytest.raises(KeyError):
        main(["--debug", "simulate", "f"])


def test_the_traceback_of_a_plugin_that_cannot_be_loaded_is_shown_on_demand(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    error = InputError("plugin p cannot be imported")
    error.__cause__ = OSError("no disk")
    monkeypatch.setattr(cli, "_run", _raising(error))
    assert main(["plugins"]) == 2
    assert capsys.readouterr().err == "fluence: plugin p cannot be imported\n"
    assert main(["--debug", "plugins"]) == 2
    assert capsys.readouterr().err == "fluence: plugin p cannot be imported\nOSError: no disk\n"


def test_plugins_exceptions_are_logged_and_their_tracebacks_only_on_demand(
    files, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    class Broken:
        def __init__(self, arguments: object) -> None: ...

        @hookimpl
        def prefilter(self) -> None:
            raise KeyError("rack")

    monkeypatch.setattr(registry, "_builders", {"broken": Broken})
    monkeypatch.setattr(failure_log, "tracebacks", False)
    (files / "config.yaml").write_text(CONFIG.replace("plugins: [", "plugins: [{name: broken}, "))
    place = f"test_main.py:{Broken.prefilter.__code__.co_firstlineno + 2}"
    assert _run(files, "simulate", "fits.yaml") == 1
    out, err = capsys.readouterr()
    reason = f"plugin broken failed in prefilter: KeyError: 'rack' at tests/unit/session_scheduler/cli/{place}"
    assert reason in " ".join(out.split())
    (line,) = err.splitlines()
    assert line.startswith("ERROR a plugin failed plugin=broken hook=prefilter error=")
    assert main(["--debug", "simulate", str(files / "fits.yaml"), "--config", str(files / "config.yaml")]) == 1
    assert 'raise KeyError("rack")' in capsys.readouterr().err


def test_ctrl_c_ends_quietly(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(commands, "_write", _raising(KeyboardInterrupt()))
    assert main(["plugins"]) == 130
    assert capsys.readouterr().err == ""


def _raising(error):
    def raise_it(*_, **__):
        raise error

    return raise_it


# ------------------------------------------------------------------ help


def test_a_command_that_logs_needs_no_standard_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(sys, "stderr", None)
    try:
        assert main(["run", "--config", str(tmp_path / "none.yaml")]) == 2
    finally:
        assert sys.stderr is not None
        sys.stderr.close()


def test_without_arguments_the_help_is_shown(capsys: pytest.CaptureFixture[str]):
    assert main([]) == 0
    shown = capsys.readouterr().out
    for command in ("simulate", "explain", "plugins"):
        assert f"\n  {command} " in shown


# ------------------------------------------------------------------ commands of plugins


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A distribution with an option for NodeName (which takes no arguments) and a command."""
    info = tmp_path / "acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[session_scheduler.options]\nracks = acme_fluence:RACKS\n"
        "[session_scheduler.commands]\nracks = acme_fluence:racks\n"
    )
    (tmp_path / "acme_fluence.py").write_text(
        "import typer\n"
        "from session_scheduler.sdk.commands import Output, PluginOption\n"
        "RACKS = PluginOption('--racks', 'NodeName', 'racks', 'The racks.')\n"
        "def racks(context: typer.Context, file: str):\n"
        "    '''Count the nodes.'''\n"
        "    context.obj.write({'nodes': [node.metadata.name for node in context.obj.nodes([file])]}, Output.JSON)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("acme_fluence", None)


def test_an_option_of_a_plugin_becomes_its_argument(acme, files, capsys: pytest.CaptureFixture[str]):
    assert _run(files, "simulate", "fits.yaml", "--racks", "four") == 2
    assert "args: the plugin has no arguments; remove them [plugin NodeName" in capsys.readouterr().err
    assert _run(files, "simulate", "fits.yaml") == 0
    assert main(["simulate", "--help"]) == 0
    assert "The racks." in capsys.readouterr().out


def test_a_command_of_a_plugin_reads_nodes_and_writes_results(acme, files, capsys: pytest.CaptureFixture[str]):
    assert main(["racks", str(files / "fits.yaml")]) == 0
    assert json.loads(capsys.readouterr().out) == {"nodes": ["n1"]}
    assert main(["--help"]) == 0
    assert re.search(r"racks +Count the nodes\.", capsys.readouterr().out)


def test_a_broken_command_of_a_plugin_is_told_by_name(acme, capsys: pytest.CaptureFixture[str]):
    (acme / "acme_fluence.py").write_text("import nothing_of_that_name")
    assert main(["racks"]) == 2
    assert "racks of acme 1.0 cannot be imported: ModuleNotFoundError" in capsys.readouterr().err
    assert main(["plugins"]) == 0


@pytest.mark.parametrize(
    ("command", "report"),
    [
        ("status", "session_scheduler.offline.status.status_of"),
        ("queues", "session_scheduler.offline.queue_report.queue_report"),
    ],
)
def test_plugins_are_called_in_an_event_loop_by_reports_too(
    files, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command, report
):
    monkeypatch.setattr(report, lambda scheduler, *_: {"running": asyncio.get_running_loop().is_running()})
    assert main([command, str(files / "fits.yaml"), "--config", str(files / "config.yaml"), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"running": True}
