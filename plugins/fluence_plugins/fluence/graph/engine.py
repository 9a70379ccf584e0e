"""Which engine answers the live graph's matches, and what is different with it.

Everything else asks the `Matcher` that an engine makes. Fluxion's own library has no divisible pools, no scores, no
clock that moves and no levels between: `LibraryMatcher` makes the first good; of the others what is configured is
refused here at the start, by the name of its field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fluence_plugins.fluence.graph import library_matcher
from fluence_plugins.fluence.graph.cluster_graph import MEMORY, NODE
from fluence_plugins.resources.config import CLUSTER, ResourcesConfig
from fluence_plugins.resources.errors import ResourcesError
from fluxion_cy import FluxionError, Matcher

EngineName = Literal["embedded", "reapi"]
DEFAULT_CHUNK_MIB = 1024
_NOTHING: Mapping[str, Any] = {
    "graph": {
        "nodes": [
            {"id": "0", "metadata": {"type": CLUSTER, "id": 0, "uniq_id": 0, "paths": {"containment": f"/{CLUSTER}0"}}},
            {"id": "1", "metadata": {"type": NODE, "id": 0, "uniq_id": 1, "paths": {"containment": f"/{CLUSTER}0/n0"}}},
        ],
        "edges": [{"source": "0", "target": "1"}],
    }
}


@dataclass(frozen=True, slots=True)
class Engine:
    """`library`: path of libreapi_cli.so, None where the environment or the loader knows it. `chunk_mib`: MiB of memory
    that are given away at once.
    """

    name: EngineName = "embedded"
    library: str | None = None
    chunk_mib: int = 1

    @property
    def refused_actions(self) -> Mapping[str, str]:
        """Why some of the scheduler's actions are not to be had."""
        if self.name == "embedded":
            return {}
        why = "reserves by durations, and the clock of plugin fluence's engine: reapi stands still"
        return {"backfill": f"backfill {why}: remove it, or choose engine: embedded"}

    def check(self, policy: str) -> None:
        """Raise ResourcesError where the library cannot be used, naming the argument, or FluxionError where it lacks
        the policy.
        """
        if self.name == "embedded":
            return
        try:
            library_matcher.opened(_NOTHING, "first", self.library).close()
        except FluxionError as error:
            field = "library" if self.library is not None else "engine"
            remedy = "here it is the argument `library`; or choose `engine: embedded`"
            raise ResourcesError(f"{field}: Fluxion's library cannot be used: {error}; {remedy}") from error
        library_matcher.opened(_NOTHING, policy, self.library).close()

    def check_resources(self, config: ResourcesConfig) -> None:
        """Raise ResourcesError for what only the embedded engine has, naming the field."""
        if self.name == "reapi" and config.windows:
            raise ResourcesError(
                "windows: are not to be had with engine: reapi, whose clock stands still; remove them, or choose "
                "engine: embedded"
            )

    def matcher(self, graph: Mapping[str, Any], policy: str) -> Matcher:
        """A matcher of a graph. Raises FluxionError."""
        if self.name == "embedded":
            return Matcher(graph, policy=policy)
        return library_matcher.LibraryMatcher(graph, policy, self.library, {MEMORY: self.chunk_mib})


EMBEDDED = Engine()
