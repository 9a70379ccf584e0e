"""The public matcher: one class for both engines."""

from inspect import Signature, signature
from typing import Any

from fluxion_cy.embedded.matcher import EmbeddedMatcher
from fluxion_cy.engine.base_matcher import Options
from fluxion_cy.reapi.matcher import LibraryMatcher


class Matcher(EmbeddedMatcher):
    """A resource graph, its jobs, and the matches of jobspecs against it.

    `graph` has the form `load_format`: JGF or R version 1 (`rv1exec`) as a mapping or as JSON or YAML text, or a recipe
    (`grug`) as GraphML text. `match_format` is the form of `R`. `policy` is a name or a custom string, `prune_filters`
    a list such as `ALL:core,ALL:node`. With `compatible`, constraints apply to vertices of type node and storage_node
    only, as in Fluxion; without it, to every vertex that has properties. Raises InvalidGraph (EPROTO), InvalidJobspec
    (the value of an option) or NotSupported (an option that this engine does not have).
    """

    def __new__(cls, *arguments: Any, **options: Any) -> "Matcher":
        """An instance of the class for `engine`."""
        engine = options.get("engine", arguments[5] if len(arguments) > 5 else "")
        reapi = isinstance(engine, str) and engine == "reapi"
        return object.__new__(_over_the_library(cls) if reapi else cls)

    def __init__(
        self,
        graph: Any,
        policy: str = "first",
        match_format: str = "jgf",
        load_format: str = "jgf",
        prune_filters: str = "ALL:core,ALL:node",
        engine: str = "embedded",
        traverser: str = "simple",
        compatible: bool = True,
        replan: bool = False,
        library: str | None = None,
    ) -> None:
        options = Options(
            policy, match_format, load_format, prune_filters, engine, traverser, compatible, replan, library
        )
        self._set_up(graph, options)

    #: For `help`, which shows the arguments of `__new__` otherwise.
    __signature__ = Signature(list(signature(__init__).parameters.values())[1:])


class ReapiMatcher(LibraryMatcher, Matcher):
    """The class of `Matcher(graph, engine="reapi")`."""


def _over_the_library(kind: type[Matcher]) -> type[Matcher]:
    """The library-based class for `Matcher` or a subclass of it; the subclass's methods come first."""
    if kind is Matcher:
        return ReapiMatcher
    if issubclass(kind, ReapiMatcher):
        return kind
    return type(kind.__name__, (kind, ReapiMatcher), {"__module__": kind.__module__})
