"""The subset of GraphML that GRUG recipes use. Size and depth are bounded; DOCTYPE and entities are rejected."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

from fluxion_cy.errors import InvalidGraph

MAX_TEXT = 4_000_000
MAX_ELEMENTS = 100_000
MAX_DEPTH = 16


@dataclass(slots=True)
class Element:
    """One element: its name, attributes, children and own text."""

    name: str
    attributes: dict[str, str]
    children: list["Element"] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    text: str = ""

    def named(self, name: str) -> Iterator["Element"]:
        """The children of this name."""
        return (child for child in self.children if child.name == name)

    def needs(self, attribute: str) -> str:
        """A required attribute. Raises InvalidGraph where it is missing."""
        found = self.attributes.get(attribute)
        if found is None:
            raise InvalidGraph(f"grug: <{self.name}> has no attribute {attribute!r}")
        return found


@dataclass(slots=True)
class Item:
    """A node or an edge of a recipe: its data by attribute name, with defaults."""

    name: str
    data: dict[str, str]
    source: str = ""
    target: str = ""


@dataclass(slots=True)
class _Key:
    name: str
    kind: str
    default: str | None


def read_graphml(text: object) -> tuple[list[Item], list[Item]]:
    """The nodes and edges of the first graph. Raises InvalidGraph."""
    if not isinstance(text, (str, bytes)):
        raise InvalidGraph(f"grug: a recipe must be GraphML text, not {type(text).__name__}")
    if len(text) > MAX_TEXT:
        raise InvalidGraph(f"grug: the recipe is longer than {MAX_TEXT} characters")
    root = _Reader().read(text)
    if root.name != "graphml":
        raise InvalidGraph(f"grug: the outermost element is <{root.name[:40]}>, not <graphml>")
    keys = _keys(root)
    graph = next(root.named("graph"), None)
    if graph is None:
        raise InvalidGraph("grug: <graphml> contains no <graph>")
    nodes = [_item(element, "node", keys, element.needs("id")) for element in graph.named("node")]
    return nodes, [_edge(element, graph, keys) for element in graph.named("edge")]


def _keys(root: Element) -> dict[str, _Key]:
    found: dict[str, _Key] = {}
    for element in root.named("key"):
        kind = element.attributes.get("for", "all")
        default = next(element.named("default"), None)
        found[element.needs("id")] = _Key(element.needs("attr.name"), kind, default.text if default else None)
    return found


def _item(element: Element, kind: str, keys: dict[str, _Key], name: str) -> Item:
    data = {key.name: key.default for key in keys.values() if key.kind in (kind, "all") and key.default is not None}
    for child in element.named("data"):
        key = keys.get(child.needs("key"))
        if key is None or key.kind not in (kind, "all"):
            raise InvalidGraph(f"grug: {kind} {name[:40]!r}: no <key> for {kind} declares {child.needs('key')[:40]!r}")
        data[key.name] = child.text
    return Item(name, data)


def _edge(element: Element, graph: Element, keys: dict[str, _Key]) -> Item:
    source, target = element.needs("source"), element.needs("target")
    item = _item(element, "edge", keys, element.attributes.get("id", f"{source} -> {target}"))
    directed = element.attributes.get("directed", str(graph.attributes.get("edgedefault") == "directed").lower())
    if directed != "true":
        raise InvalidGraph(f'grug: edge {item.name[:40]!r}: is not directed; write edgedefault="directed"')
    item.source, item.target = source, target
    return item


class _Reader:
    """Builds elements from expat's events."""

    def __init__(self) -> None:
        self._stack: list[Element] = [Element("", {})]
        self._count = 0

    def read(self, text: str | bytes) -> Element:
        parser = expat.ParserCreate()
        parser.StartDoctypeDeclHandler = self._refuse
        parser.EntityDeclHandler = self._refuse
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._data
        try:
            parser.Parse(text, True)
        except (expat.ExpatError, ValueError, LookupError) as error:
            raise InvalidGraph(f"grug: the recipe is not well-formed XML: {str(error)[:100]}") from None
        return self._stack[0].children[0]

    @staticmethod
    def _refuse(*_: object) -> None:
        raise InvalidGraph("grug: DOCTYPE and entities are not allowed in a recipe; remove them")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._count += 1
        if len(self._stack) > MAX_DEPTH or self._count > MAX_ELEMENTS:
            raise InvalidGraph(f"grug: more than {MAX_DEPTH} levels or {MAX_ELEMENTS} elements of XML")
        element = Element(name, attributes)
        self._stack[-1].children.append(element)
        self._stack.append(element)

    def _end(self, _name: str) -> None:
        element = self._stack.pop()
        element.text = "".join(element.parts).strip()

    def _data(self, text: str) -> None:
        self._stack[-1].parts.append(text)
