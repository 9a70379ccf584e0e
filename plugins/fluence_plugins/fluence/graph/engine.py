"""The engine of the live graph's matches: the embedded one, or Fluxion's own library.

All other modules use the engine's `Matcher`. Fluxion's library has no divisible pools, no scores and no moving clock.
`LibraryMatcher` adds the first; this module refuses configured fields that need the others, at startup.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

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


class Engine(msgspec.Struct, frozen=True):
    """The chosen engine.

    `library`: path of libreapi_cli.so, None for that of the environment or the loader. `chunk_mib`: how many MiB one
    unit of allocated memory has.
    """

    name: EngineName = "embedded"
    library: str | None = None
    chunk_mib: int = 1

    @property
    def refused_actions(self) -> Mapping[str, str]:
        """Actions of the scheduler that this engine does not support, and why."""
        if self.name == "embedded":
            return {}
        why = "needs durations, which plugin fluence does not support with 'engine: reapi'"
        return {"backfill": f"backfill {why}; remove backfill, or choose 'engine: embedded'"}

    def check(self, policy: str) -> None:
        """Check the library.

        Raises ResourcesError, which names the argument, if it is not usable, or FluxionError if it lacks the policy.
        """
        if self.name == "embedded":
            return
        try:
            library_matcher.open_library(_NOTHING, "first", self.library).close()
        except FluxionError as error:
            field = "library" if self.library is not None else "engine"
            remedy = "pass the path as the argument `library`, or choose `engine: embedded`"
            raise ResourcesError(f"{field}: Fluxion's library cannot be used: {error}; {remedy}") from error
        library_matcher.open_library(_NOTHING, policy, self.library).close()

    def check_resources(self, config: ResourcesConfig) -> None:
        """Raise ResourcesError, which names the field, for features of the embedded engine."""
        if self.name == "reapi" and config.windows:
            raise ResourcesError(
                "windows: are not supported with `engine: reapi`; remove them, or choose `engine: embedded`"
            )

    def matcher(self, graph: Mapping[str, Any], policy: str) -> Matcher:
        """A matcher of a graph. Raises FluxionError."""
        if self.name == "embedded":
            return Matcher(graph, policy=policy)
        return library_matcher.LibraryMatcher(graph, policy, self.library, {MEMORY: self.chunk_mib})


EMBEDDED = Engine()
