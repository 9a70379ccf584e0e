"""Panels: the pages of the dashboard. Plugins add theirs by the entry-point group `fluence_lab.panels`. Public."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from importlib import metadata
from typing import Any, Final

import msgspec

from fluence_lab.history import NO_HISTORY, History
from fluence_lab.view import View
from session_scheduler.errors import InputError
from session_scheduler.model.objects import Pod
from session_scheduler.observation.values import Observed

__all__ = ["PANELS_GROUP", "Panel", "PanelContext", "Search", "installed"]

PANELS_GROUP: Final = "fluence_lab.panels"


def _no_plugin(_: str) -> object | None:
    return None


def _no_verdicts(_: str) -> Mapping[str, Any] | None:
    return None


class PanelContext(msgspec.Struct, frozen=True):
    """What a panel shows: a cluster as one user may see it."""

    observed: Observed
    """Without the pods of other namespaces."""
    history: History = NO_HISTORY
    """Without the pods of other namespaces."""
    query: Mapping[str, str] = {}
    """The query of the page's address, such as {"pod": "science/sampler"}."""
    namespaces: frozenset[str] | None = None
    """The namespaces that the user may read; None for all."""
    plugin: Callable[[str], object | None] = _no_plugin
    """The loaded plugin of a name, or None. A panel that reads it shows only pods that the user may read."""
    verdicts: Callable[[str], Mapping[str, Any] | None] = _no_verdicts
    """For a pod (NAMESPACE/NAME) that the user may read: its entry in the JSON of `explain`; None if it is gone."""

    pods: Callable[[], Mapping[str, Pod]] = dict
    """The objects of the pods that the user may read, by NAMESPACE/NAME, with their labels and annotations."""
    fetched: object = None
    """The last answer of the panel's `fetch`; None before the first, and without a cluster."""

    def may_read(self, key: str) -> bool:
        """Whether the user may read a pod (NAMESPACE/NAME)."""
        return self.namespaces is None or key.partition("/")[0] in self.namespaces


class Search(msgspec.Struct, frozen=True):
    """A search field on a page."""

    parameter: str
    """The parameter of the page's query, such as "node"."""
    label: str
    """For example "Find nodes"."""
    hint: str = ""
    """What to enter; the field shows it while it is empty."""


class Panel(msgspec.Struct, frozen=True):
    """One page. Its view is computed at each update, for each user, within milliseconds."""

    name: str
    """Its path: lower case, digits and -."""
    title: str
    view: Callable[[PanelContext], View | None]
    """Returns None if there is nothing to show, such as when a plugin is not loaded: the page is then not listed."""
    fetch: Callable[[Any], Awaitable[object]] | None = None
    """Reads what the scheduler's cache lacks from the API server, with a client of `sdk.dynamic_client`. The dashboard
    calls it every half a minute, with its own permissions; it may take 20 s."""
    plugin: str = ""
    """The scheduler's plugin without which the dashboard does not call `fetch`; empty for none."""
    search: Search | None = None
    """A field on the page, whose value its query has."""
    order: int = 100
    """Pages are listed by it, then by title. The lab's own have 10 to 70."""


def installed() -> list[Panel]:
    """All panels, in order. Raises InputError where one cannot be imported, or is not a Panel."""
    found = []
    for entry in metadata.entry_points(group=PANELS_GROUP):
        offer = f"panel {entry.name} of {entry.dist.name if entry.dist else 'an unknown distribution'}"
        try:
            panel = entry.load()
        except Exception as error:  # any exception of the import is the distribution's error
            problem = f"{type(error).__name__}: {error}"
            raise InputError(f"{offer} cannot be imported ({problem}); fix or reinstall it") from error
        if not isinstance(panel, Panel):
            raise InputError(f"{offer}: expected a fluence_lab.panels.Panel, got {panel!r}; fix it")
        found.append(panel)
    return sorted(found, key=lambda panel: (panel.order, panel.title))
