"""A plugin's exception: the place in its code, in the reason and in the log."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from session_scheduler import hookimpl
from session_scheduler.builtin.node_ports import NodePorts
from session_scheduler.errors import AttemptError
from session_scheduler.framework import failures
from session_scheduler.framework.failures import FailureLog
from session_scheduler.framework.hooks import HookCall, PluginError
from session_scheduler.registry.validation import hook_calls

PACKAGE = {
    "__init__.py": "",
    "racks/__init__.py": "def at_fault(mask):\n    raise KeyError('rack')\n",
    "racks/plugin.py": """
from json import loads
from session_scheduler import hookimpl
from . import at_fault

class Racks:
    @hookimpl
    def facts(self):
        return loads("{")

    @hookimpl
    def offered(self):
        return at_fault(1)
""",
}


@pytest.fixture
def racks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A plugin of a package `acme_racks` with a helper module."""
    for name, text in PACKAGE.items():
        file = tmp_path / "acme_racks" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    from importlib import import_module

    yield import_module("acme_racks.racks.plugin").Racks()
    for module in [name for name in sys.modules if name.startswith("acme_racks")]:
        del sys.modules[module]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> FailureLog:
    from session_scheduler.framework import hooks

    new = FailureLog()
    monkeypatch.setattr(hooks, "failure_log", new)
    return new


def failure(plugin: object, hook: str) -> PluginError:
    (call,) = hook_calls([("racks", plugin, None)]).functions(hook)
    with pytest.raises(PluginError) as caught:
        call()
    return caught.value


@pytest.mark.parametrize(
    ("hook", "place"),
    [
        ("facts", "acme_racks/racks/plugin.py:9"),  # a library that it called raised
        ("offered", "acme_racks/racks/__init__.py:2"),  # a helper of its own raised
    ],
)
def test_the_place_is_the_innermost_line_of_the_plugins_package(racks: Any, hook: str, place: str) -> None:
    assert str(failure(racks, hook)).endswith(f" at {place}")


def test_a_built_in_plugin_has_its_place_too() -> None:
    (call,) = hook_calls([("NodePorts", NodePorts(None), None)]).functions("filter")
    with pytest.raises(PluginError, match=r" at session_scheduler/builtin/node_ports\.py:\d+$"):
        call(None, None, None, None, None)  # no ports to iterate over


def test_an_exception_that_no_line_of_a_plugin_raised_has_no_place() -> None:
    with pytest.raises(PluginError) as caught:
        HookCall("p", "facts", int)("x")
    assert str(caught.value) == "plugin p failed in facts: ValueError: invalid literal for int() with base 10: 'x'"


def test_an_exception_is_logged_once_a_minute_without_a_traceback(
    racks: Any, log: FailureLog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    times = iter((100.0, 130.0, 170.0))
    monkeypatch.setattr(failures, "perf_counter", lambda: next(times))
    with capture_logs() as logs:
        for _ in range(3):
            failure(racks, "offered")
    line = {
        "event": "a plugin failed", "log_level": "error", "plugin": "racks", "hook": "offered",
        "error": "KeyError: 'rack'", "file": str(tmp_path / "acme_racks/racks/__init__.py"), "line": 2,
    }  # fmt: skip
    assert logs == [line, line]


def test_with_debug_every_exception_is_logged_and_the_first_of_a_line_with_its_traceback(
    racks: Any, log: FailureLog
) -> None:
    log.tracebacks = True
    with capture_logs() as logs:
        first, _ = [failure(racks, "offered").__cause__ for _ in range(2)]
    assert [entry.get("exc_info") for entry in logs] == [first, None]


def test_an_error_that_ends_the_attempt_is_an_answer_not_a_failure(log: FailureLog) -> None:
    class Ends:
        @hookimpl
        def prepare(self) -> None:
            raise AttemptError("no state")

    with capture_logs() as logs:
        (call,) = hook_calls([("ends", Ends(), None)]).functions("prepare")
        with pytest.raises(PluginError) as caught:
            call(None, None)
    assert str(caught.value) == 'running PreFilter plugin "ends": no state'
    assert logs == []


def test_a_plugins_exception_inside_another_plugins_call_has_one_place_and_one_log_line(
    racks: Any, log: FailureLog
) -> None:
    class Outer:
        @hookimpl
        def facts(self) -> None:
            raise failure(racks, "offered")

    with capture_logs() as logs:
        outer = failure(Outer(), "facts")
    assert str(outer) == (
        "plugin racks failed in facts: PluginError: plugin racks failed in offered: KeyError: 'rack' "
        "at acme_racks/racks/__init__.py:2"
    )
    assert len(logs) == 1
