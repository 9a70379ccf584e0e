"""Resolved hooks: their order, arguments and timing, and errors for invalid declarations."""

from __future__ import annotations

import pytest

from session_scheduler import Scope, hookimpl
from session_scheduler.framework.hooks import PluginError
from session_scheduler.registry.validation import hook_calls


class Plugin:
    def __init__(self, heard, mark, **declared):
        self._heard, self._mark = heard, mark
        for attribute, value in declared.items():
            setattr(self, attribute, value)

    @hookimpl
    def prefilter(self, group):
        self._heard.append((self._mark, group))

    @hookimpl
    def score(self, nodes, session): ...


def test_hooks_are_called_in_the_configured_order_with_the_arguments_they_name():
    heard = []
    calls = hook_calls([("b", Plugin(heard, "b"), None), ("a", Plugin(heard, "a"), None)])
    for call in calls.functions("prefilter"):
        call("session", "group")
    assert heard == [("b", "group"), ("a", "group")]
    assert [call.calls for call in calls.functions("prefilter")] == [1, 1]
    assert calls.seconds().keys() == {"a", "b"}


def test_the_configured_weight_overrides_the_declared_one():
    calls = hook_calls([("a", Plugin([], "a", weight=3), None), ("b", Plugin([], "b", weight=3), 0)])
    assert [plugin.score and plugin.score.weight for plugin in calls.plugins] == [3, 0]


@pytest.mark.parametrize("weight", [-1, 1.5, "3", True, 2**40])
def test_an_invalid_weight_is_rejected(weight):
    with pytest.raises(PluginError, match=r"plugin a failed in weight: expected a whole number from 0 to 65536, got "):
        hook_calls([("a", Plugin([], "a", weight=weight), None)])


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan"), "5", True])
def test_an_invalid_time_out_of_a_plugin_is_rejected(seconds):
    with pytest.raises(
        PluginError, match=r"plugin a failed in hook_seconds: expected a positive number of seconds, or None, got "
    ):
        hook_calls([("a", Plugin([], "a", hook_seconds=seconds), None)])


def test_a_plugin_may_disable_its_time_out():
    plugin = Plugin([], "a", hook_seconds=None)
    assert hook_calls([("a", plugin, None)], 5.0).functions("prefilter")[0].budget is None


@pytest.mark.parametrize(("attribute", "value"), [("score_scope", "static"), ("normalise", Scope.NODE)])
def test_a_declaration_of_the_wrong_type_is_rejected(attribute, value):
    with pytest.raises(PluginError, match=f"plugin a failed in {attribute}: expected a member of .*, got "):
        hook_calls([("a", Plugin([], "a", **{attribute: value}), None)])


def test_a_failure_is_one_line_with_plugin_and_hook():
    class Failing:
        @hookimpl
        def facts(self):
            raise ValueError("two\nlines")

    (call,) = hook_calls([("f", Failing(), None)]).functions("facts")
    with pytest.raises(PluginError) as caught:
        call()
    line = Failing.facts.__code__.co_firstlineno + 2
    assert str(caught.value) == (
        "plugin f failed in facts: ValueError: two lines "
        f"at tests/unit/session_scheduler/framework/test_hooks.py:{line}"
    )
    assert (caught.value.plugin, caught.value.hook) == ("f", "facts")


def test_two_plugins_of_one_name_are_rejected() -> None:
    with pytest.raises(ValueError, match="plugin a appears twice"):
        hook_calls([("a", Plugin([], "a"), None), ("a", Plugin([], "a"), None)])
