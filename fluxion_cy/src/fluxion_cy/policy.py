"""Match policies, by name or as a custom string, in Fluxion's spelling."""

from dataclasses import dataclass

from fluxion_cy.errors import InvalidJobspec


@dataclass(frozen=True, slots=True)
class Policy:
    """How a search scores matches, and when it stops."""

    high: bool = False
    node_centric: bool = False
    node_exclusive: bool = False
    stop_on_1_matches: bool = False
    ordering: int = 0
    """0: by id; 1: by the property perf_class; 2: by runs of consecutive ids; 3: the fullest node first."""


#: The policies by name.
NAMED = {
    "first": Policy(high=True, node_centric=True, stop_on_1_matches=True),
    "firstnodex": Policy(high=True, node_centric=True, node_exclusive=True, stop_on_1_matches=True),
    "high": Policy(high=True),
    "low": Policy(),
    "lonode": Policy(node_centric=True),
    "hinode": Policy(high=True, node_centric=True),
    "lonodex": Policy(node_centric=True, node_exclusive=True),
    "hinodex": Policy(high=True, node_centric=True, node_exclusive=True),
    "variation": Policy(ordering=1),
    "locality": Policy(high=True, ordering=2),
    "pack": Policy(ordering=3),
}
_FLAGS = ("node_centric", "node_exclusive", "stop_on_1_matches")


def policy_of(text: str) -> Policy:
    """The policy of a name, or of `policy=low|high [node_centric=…] [node_exclusive=…] [stop_on_1_matches=…]`."""
    if not isinstance(text, str):
        raise InvalidJobspec(f"policy: must be a string, not {type(text).__name__}")
    if text in NAMED:
        return NAMED[text]
    return _custom(text)


def _custom(text: str) -> Policy:
    found: dict[str, bool] = {}
    for word in text.split(" "):
        key, equals, value = word.partition("=")
        if key == "policy" and equals and value in ("low", "high"):
            found.setdefault("high", value == "high")
        elif key in _FLAGS and value in ("true", "false"):
            found.setdefault(key, value == "true")
        else:
            raise InvalidJobspec(f"policy: expected {', '.join(NAMED)} or an option of a policy, got {word[:60]!r}")
    if "high" not in found:
        raise InvalidJobspec(f"policy: expected policy=low or policy=high in {text[:60]!r}")
    flags = {key: found.get(key, False) for key in _FLAGS}
    return Policy(high=found["high"], **flags)


def prune_filters_of(text: str) -> list[tuple[str | None, str]]:
    """The pairs (anchor type, None for ALL; pruned type) of a list such as `ALL:core,cluster:gpu`."""
    if not isinstance(text, str):
        raise InvalidJobspec(f"prune_filters: must be a string, not {type(text).__name__}")
    found: list[tuple[str | None, str]] = []
    for part in text.split(","):
        anchor, colon, kind = ("".join(piece.split()) for piece in part.partition(":"))
        if not (anchor and colon and kind):
            raise InvalidJobspec(f"prune_filters: expected ANCHOR:TYPE, got {part[:60]!r}")
        found.append((None if anchor == "ALL" else anchor, kind))
    return found
