"""Commands that read and change the graph."""

from typing import Any

from fluxion_cy.base.ranges import idset
from fluxion_cy.errors import InvalidGraph
from fluxion_cy.matcher import Matcher
from fluxion_cy.query.answers import RULE, Answer, Malformed, Session, informed, named, read, written


def find(session: Session, words: list[str]) -> Answer:
    """Finds vertices by an expression."""
    expression = " ".join(words)
    found = session.matcher.find(expression)
    text = "" if found is None else written(_in_form(found, session.match_format))
    return Answer({"expression": expression, "graph": found}, text + informed(RULE, f'EXPRESSION="{expression}"', RULE))


def _in_form(found: dict[str, Any], form: str) -> Any:
    """The found vertices in the match format: as R of a matcher in which one job holds the whole graph."""
    if form in ("jgf", "jgf_shorthand"):
        return found
    everything = Matcher(found, match_format=form).update_allocate(1, found).R
    if isinstance(everything, dict):
        everything["execution"] |= {"starttime": 0, "expiration": 0}
        everything |= {"scheduling": found} if form in ("rv1", "rv1_shorthand") else {}
    return everything


def attach(session: Session, words: list[str]) -> Answer:
    """Adds the new vertices of a JGF file."""
    text = read(words[0])
    with named(words[0]):
        session.matcher.add_subgraph(text)
    return Answer({"file": words[0]})


def remove(session: Session, words: list[str]) -> Answer:
    """Removes a vertex and everything below it: PATH [true], or the topmost vertices of ranks: IDSET false."""
    kind = words[1] if len(words) > 1 else "true"
    if kind not in ("true", "false"):
        raise Malformed(f"{kind[:40]!r}: expected true for a path, false for an idset of ranks")
    if kind == "true":
        session.matcher.remove_subgraph(words[0])
        return Answer({"path": words[0]})
    paths = _of_ranks(session, words[0])
    for path in paths:
        session.matcher.remove_subgraph(path)
    return Answer({"ranks": words[0], "paths": paths})


def _of_ranks(session: Session, text: str) -> list[str]:
    """The topmost vertex of each rank of an idset."""
    try:
        spans = idset(text)
    except ValueError:
        raise Malformed(f"{text[:40]!r}: expected an idset of ranks") from None
    topmost: dict[int, str] = {}
    for node in session.matcher.graph()["graph"]["nodes"]:
        rank, path = node["metadata"].get("rank", -1), node["metadata"]["paths"].get("containment")
        if path and any(low <= rank <= high for low, high in spans):
            topmost[rank] = min(path, topmost.get(rank, path), key=lambda found: found.count("/"))
    if not topmost:
        raise Malformed(f"{text[:40]!r}: no vertex has one of these ranks")
    return [topmost[rank] for rank in sorted(topmost)]


# ---- status and properties -----------------------------------------------------------------------------------------


def set_status(session: Session, words: list[str]) -> Answer:
    """Marks a vertex up or down."""
    if words[1] not in ("up", "down"):
        raise Malformed(f"unrecognized status {words[1][:40]!r}; use up or down")
    session.matcher.set_status(words[0], words[1] == "up")
    return Answer({"path": words[0], "status": words[1]})


def get_status(session: Session, words: list[str]) -> Answer:
    """Whether a vertex is up or down."""
    status = "up" if session.matcher.get_status(words[0]) else "down"
    return Answer({"path": words[0], "status": status}, f"{words[0]} is {status}\n")


def _vertex(session: Session, path: str) -> dict[str, Any]:
    """A vertex in the graph's JGF."""
    session.matcher.get_status(path)  # raises if the graph has no such vertex
    nodes: list[dict[str, Any]] = session.matcher.graph()["graph"]["nodes"]
    for node in nodes:
        if node["metadata"]["paths"].get("containment") == path:
            return node
    raise InvalidGraph(f"path {path!r}: the graph has no such vertex")


def set_property(session: Session, words: list[str]) -> Answer:
    """Adds PROPERTY=VALUE to a vertex."""
    key, _, value = words[1].partition("=")
    if not key or not value:
        raise Malformed(f"{words[1][:40]!r}: use set-property PATH PROPERTY=VALUE")
    properties = _vertex(session, words[0])["metadata"].get("properties") or {}
    session.matcher.set_properties(words[0], {**properties, key: value})
    return Answer({"path": words[0], "property": key, "value": value})


def get_property(session: Session, words: list[str]) -> Answer:
    """All properties of a vertex."""
    node = _vertex(session, words[0])
    found = dict(node["metadata"].get("properties") or {})
    number = node["metadata"].get("uniq_id", node["id"])
    none = f"No properties were found for {words[0]} (vtx's uniq_id={number}).\n"
    text = "".join(f"{key}={value}\n" for key, value in sorted(found.items()))
    return Answer({"path": words[0], "properties": found}, text or none)
