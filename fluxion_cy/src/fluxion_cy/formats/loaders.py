"""The loaders of graphs, by `load_format`."""

from collections.abc import Callable
from typing import Any

from fluxion_cy.errors import NotSupported, shown
from fluxion_cy.formats.grug import read_grug
from fluxion_cy.formats.jgf import read_graph
from fluxion_cy.formats.rv1exec import read_rv1exec

Loader = Callable[[Any], dict[str, Any]]
"""Converts the argument `graph` to a JGF document."""

_LOADERS: dict[str, Loader] = {
    "jgf": read_graph,
    "jgf_shorthand": read_graph,  # the difference is in reading back a bare R
    "rv1exec": read_rv1exec,
    "grug": read_grug,
}


def loader_of(name: object) -> Loader:
    """The loader of a `load_format`."""
    if not isinstance(name, str) or name not in _LOADERS:
        raise NotSupported(f"load_format={shown(name)} is unknown; use one of {', '.join(_LOADERS)}")
    return _LOADERS[name]
