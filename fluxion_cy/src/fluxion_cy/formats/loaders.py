"""The forms in which a graph is read: what `load_format` names."""

from collections.abc import Callable
from typing import Any

from fluxion_cy.errors import NotSupported, shown
from fluxion_cy.formats.grug import read_grug
from fluxion_cy.formats.jgf import read_graph
from fluxion_cy.formats.rv1exec import read_rv1exec

Loader = Callable[[Any], dict[str, Any]]
"""What a caller gives as `graph` to a JGF document."""

_LOADERS: dict[str, Loader] = {
    "jgf": read_graph,
    "jgf_shorthand": read_graph,  # differs only in how a bare R is read back
    "rv1exec": read_rv1exec,
    "grug": read_grug,
}


def loader_of(name: object) -> Loader:
    """The loader that `load_format` names."""
    if not isinstance(name, str) or name not in _LOADERS:
        raise NotSupported(f"load_format={shown(name)}: is unknown; known are {', '.join(_LOADERS)}")
    return _LOADERS[name]
