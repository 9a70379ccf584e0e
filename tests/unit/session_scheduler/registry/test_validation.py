"""The search for hooks leaves out what is none, and nothing else."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pluggy
import pytest

from session_scheduler import hookimpl, hookspecs
from session_scheduler.builtin import BUILTIN
from session_scheduler.hookspecs import PROJECT
from session_scheduler.registry.validation import implementations, new_manager


@hookimpl
def facts() -> int:
    return 1


class Plain:
    weight = 3
    made: type = dict

    def __init__(self) -> None:
        self.seen: list[int] = []

    @hookimpl
    def prefilter(self, group: Any) -> None: ...

    def filter(self, mask: Any) -> None: ...

    @property
    def why(self) -> None:
        raise AssertionError("nothing is evaluated")


class Inherits(Plain):
    """A hook that a subclass overrides with another attribute does not count as its hook."""

    @hookimpl
    def filter(self, mask: Any) -> None: ...

    def prefilter(self, group: Any) -> None: ...


class Bound:
    @staticmethod
    @hookimpl
    def prefilter(group: Any) -> None: ...

    @classmethod
    @hookimpl
    def filter(cls, mask: Any) -> None: ...


class OfItsOwn:
    def __init__(self) -> None:
        self.facts = facts
        self.filter = Plain().filter
        self.prefilter = Plain().prefilter


class Slot:
    __slots__ = ("facts",)

    def __init__(self) -> None:
        self.facts = facts


def module() -> ModuleType:
    made = ModuleType("made")
    made.facts = facts  # type: ignore[attr-defined]
    return made


def found(manager: pluggy.PluginManager, plugin: object) -> set[str]:
    manager.register(plugin, name="p")
    return {caller.name for caller in manager.get_hookcallers(plugin) or ()}


@pytest.mark.parametrize(
    ("plugin", "hooks"),
    [
        (Plain(), {"prefilter"}), (Inherits(), {"filter"}), (Bound(), {"prefilter", "filter"}),
        (OfItsOwn(), {"facts", "prefilter"}), (Slot(), {"facts"}), (Plain, {"prefilter"}), (module(), {"facts"}),
    ],
)  # fmt: skip
def test_the_hooks_that_pluggy_finds_are_found(plugin: object, hooks: set[str]) -> None:
    everything = pluggy.PluginManager(PROJECT)
    everything.add_hookspecs(hookspecs)
    assert found(new_manager(), plugin) == found(everything, plugin) == hooks


def test_every_hook_has_a_specification() -> None:
    everything = pluggy.PluginManager(PROJECT)
    everything.add_hookspecs(hookspecs)
    assert {*vars(new_manager().hook)} == {*vars(everything.hook)}


@pytest.mark.parametrize("name", BUILTIN)
def test_of_a_class_that_was_seen_before_the_same_hooks_are_known(name: str) -> None:
    everything = pluggy.PluginManager(PROJECT)
    everything.add_hookspecs(hookspecs)
    for _ in range(2):
        plugin = BUILTIN[name](None)
        known = implementations(name, plugin)
        assert {*known} == found(everything, plugin)
        everything.unregister(plugin)
        assert all(each.function == getattr(plugin, hook) for hook, each in known.items())


def test_a_class_that_has_changed_since_is_looked_through_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Changing:
        __module__ = "session_scheduler.changing"

        @hookimpl
        def prefilter(self, group: Any) -> None: ...

    @hookimpl
    def other(self: Any, session: Any) -> None: ...

    def hooks() -> dict[str, tuple[str, ...]]:
        return {hook: each.takes for hook, each in implementations("changing", Changing()).items()}

    assert hooks() == hooks() == {"prefilter": ("group",)}
    monkeypatch.setattr(Changing, "prefilter", other)
    monkeypatch.setattr(Changing, "filter", other, raising=False)
    assert hooks() == {"prefilter": ("session",), "filter": ("session",)}


def test_hooks_of_an_object_alone_are_its_own() -> None:
    class Own:
        __module__ = "session_scheduler.own"

        @hookimpl
        def prefilter(self, group: Any) -> None: ...

    own = Own()
    assert {*implementations("own", own)} == {"prefilter"}
    own.facts = facts  # type: ignore[attr-defined]
    assert {*implementations("own", own)} == {"prefilter", "facts"}
    assert {*implementations("own", Own())} == {"prefilter"}
