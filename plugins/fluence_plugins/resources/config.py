"""`resources.yaml`: the trees of virtual resources, which scheduler, device plugin and webhook read.

The file contains `resources:`, a list of trees; `attributes:`, named sets that trees may refer to; and `windows:`, see
`maintenance_windows`. Loading resolves references, passes attributes down (a child's own ones override; an empty value
clears), and attaches a tree whose `parent` names another resource below that resource. Which parents exist in the
cluster is known only when the graph is built.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import msgspec
from msgspec.structs import replace

from fluence_plugins.resources import documents, names
from fluence_plugins.resources.errors import NamingError, ResourcesError, listed
from fluence_plugins.resources.maintenance_windows import Backends, Window, windows_of
from session_scheduler.errors import plain, shown

CLUSTER = "cluster"
"""The name of the graph's root: the default parent of a tree."""
MAX_VERTICES = 20_000
"""The maximum number of vertices of all trees together."""
MAX_LEVELS = 32
"""The deepest nesting of resources, including trees attached by `parent`."""
MAX_KEYS = 256
"""The maximum number of attribute keys of a file: each one is an environment variable in every container."""
MAX_ATTRIBUTES = 32 << 10
"""The maximum size in bytes of a resource's attributes, including inherited ones, as annotations of a pod. The API
server limits all annotations of a pod to 256 KiB (apimachinery, TotalAnnotationSizeLimitB), and other clients write
some, too.
"""
MAX_ATTRIBUTES_OF_ALL = 16 << 20
"""The same limit for all vertices together: each one stores its own attributes in the graph."""

MOST_SHARING = 1000
"""How many pods may share a resource."""

_NO_COUNT = f"is not a valid count; use a whole number from 1 to {MAX_VERTICES}"
_NO_SHARING = f"is not a valid number of pods; use a whole number from 1 to {MOST_SHARING}"
UP, DOWN = "up", "down"
_FIELDS = {"type", "name", "parent", "count", "sharing", "status", "attributes", "with"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,252}")


class VirtualResource(msgspec.Struct, frozen=True):
    """An entry of the file: `count` equal vertices with the same attributes and children.

    `attributes` are resolved: they include references and inherited attributes, and no cleared ones. `parent` matters
    only for a tree's root: `cluster`, or the name of a physical node. `down`: the resource, or one above it, is not
    allocated to new pods; pods that have it keep it. `sharing`: how many pods may hold one of the vertices at the same
    time.
    """

    type: str
    name: str | None = None
    parent: str = CLUSTER
    count: int = 1
    attributes: Mapping[str, str] = msgspec.field(default_factory=dict)
    children: tuple["VirtualResource", ...] = ()
    down: bool = False
    sharing: int = 1

    def walk(self) -> Iterator["VirtualResource"]:
        """Yield this resource and everything below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()

    def classes(self) -> frozenset[str]:
        """Return the types of the resource and of everything below it."""
        return frozenset(resource.type for resource in self.walk())

    def size(self) -> int:
        """Return the number of vertices of the tree, including all repetitions."""
        return _vertices(self.count, self.sharing, sum(child.size() for child in self.children))


class ResourcesConfig(msgspec.Struct, frozen=True):
    """A loaded resources file. An empty one describes a cluster without virtual resources."""

    resources: tuple[VirtualResource, ...] = ()
    windows: tuple[Window, ...] = ()

    def walk(self) -> Iterator[VirtualResource]:
        """Yield every resource of every tree, parents first."""
        for root in self.resources:
            yield from root.walk()


def load_resources(text: str, source: str) -> ResourcesConfig:
    """Parse a resources file (YAML or JSON); `source` is its name in messages.

    Raises DocumentError for invalid YAML, and ResourcesError with file, field and remedy for invalid content. Empty
    input, or input with only comments, is an empty configuration.
    """
    data = documents.load(text, source, scalars="text")
    return ResourcesConfig() if data is None else _Loader(source).config(data)


def exclusive_names(config: ResourcesConfig) -> set[str]:
    """Return the names of the resources that are not part of a node; the type of a tree without a name."""
    trees = [tree for tree in config.resources if tree.parent == CLUSTER]
    return {tree.name or tree.type for tree in trees} | {
        resource.name for tree in trees for resource in tree.walk() if resource.name
    }


def resource_types(config: ResourcesConfig) -> list[str]:
    """Return all requestable types, at any depth, sorted."""
    return sorted({resource.type for resource in config.walk()})


def fluxion_resource_names(config: ResourcesConfig) -> list[str]:
    """Return the extended resources that pods may request, `fluxion.flux-framework.org/<type>`, sorted."""
    return [names.resource_name(resource_type) for resource_type in resource_types(config)]


def attribute_keys(config: ResourcesConfig) -> list[str]:
    """Return all attribute keys, sorted."""
    return sorted({key for resource in config.walk() for key in resource.attributes})


def env_contract(config: ResourcesConfig) -> dict[str, str]:
    """Map each environment variable of a workload to the annotation with its value.

    `FLUXION_BACKEND` comes first, then one variable for each attribute key, sorted.
    """
    keys = names.env_names(attribute_keys(config))
    return {names.BACKEND_ENV: names.BACKEND_ANNOTATION} | {
        env: names.attribute_annotation(key) for key, env in keys.items()
    }


class _Entry(msgspec.Struct, frozen=True):
    """A resource as written: its own attributes, with None for those that it clears."""

    path: str
    type: str
    name: str | None
    parent: str
    count: int
    sharing: int
    down: bool
    own: Mapping[str, str | None]
    children: tuple["_Entry", ...]

    def walk(self) -> Iterator["_Entry"]:
        yield self
        for child in self.children:
            yield from child.walk()

    @property
    def top(self) -> str:
        """The path of the tree's root, as written."""
        return self.path.partition(".with[")[0]

    @property
    def level(self) -> int:
        """The number of resources above the entry, as written."""
        return self.path.count(".with[")

    def size(self) -> int:
        """The number of vertices that the entry creates."""
        return _vertices(self.count, self.sharing, sum(child.size() for child in self.children))


class _Attributes(msgspec.Struct, frozen=True):
    """Resolved attributes, and their size in bytes as annotations."""

    values: Mapping[str, str] = msgspec.field(default_factory=dict)
    size: int = 0


class _Loader:
    def __init__(self, source: str) -> None:
        self.source = source
        self.sets: dict[str, dict[str, str | None]] = {}
        self.keys: set[str] = set()
        self.count = 0
        self.attributes_of_all = 0

    def fail(self, path: str, problem: str) -> NoReturn:
        raise ResourcesError(f"{self.source}: {path + ': ' if path else ''}{problem}")

    def config(self, data: Any) -> ResourcesConfig:
        if not isinstance(data, dict):
            self.fail("", "must be a mapping with a list `resources:`")
        self.known_fields("", data, {"resources", "attributes", "windows"})
        if not data.get("resources") and not data.get("windows"):
            self.fail("resources", "is empty, but the file is not; list the resource trees under `resources:`")
        for key, value in self.mapping_at("attributes", data.get("attributes")).items():
            self.sets[key] = self.attribute_map(f"attributes.{plain(key)}", value)
        entries = self.entries("resources", data.get("resources"), nested=False)
        roots = self.attached(entries)
        vertices = sum(root.size() for root in roots)
        if vertices > MAX_VERTICES:
            self.fail("resources", f"have {vertices} vertices, more than {MAX_VERTICES}; lower a `count` or "
                      "`sharing`")  # fmt: skip
        named = {root.name for root in roots if root.name and root.count == 1}
        numbered = {root.name or root.type for root in roots if not root.name or root.count > 1}
        windows = windows_of(data.get("windows"), Backends(named, numbered), self.fail)
        config = ResourcesConfig(tuple(self.resolved(root, _Attributes(), 1, down=False) for root in roots), windows)
        try:
            names.env_names(attribute_keys(config))
        except NamingError as error:
            self.fail("resources", str(error))
        return config

    def known_fields(self, path: str, data: Mapping[str, Any], known: set[str]) -> None:
        for key in data:
            if key not in known:
                where = f"{path}.{plain(key)}" if path else plain(key)
                self.fail(where, f"unknown field; use one of {', '.join(sorted(known))}")

    def mapping_at(self, path: str, value: Any) -> dict[str, Any]:
        if value is not None and not isinstance(value, dict):
            self.fail(path, "must be a mapping; write `key: value` lines below it")
        return value or {}

    def entries(self, path: str, value: Any, nested: bool) -> tuple[_Entry, ...]:
        if value is None:
            return ()
        if not isinstance(value, list):
            self.fail(path, "must be a list; start each resource with `- type:`")
        return tuple(self.entry(f"{path}[{index}]", item, nested) for index, item in enumerate(value))

    def entry(self, path: str, data: Any, nested: bool) -> _Entry:
        if not isinstance(data, dict):
            self.fail(path, "must be a mapping; write `type: <type>` and its other fields")
        self.known_fields(path, data, _FIELDS)
        self.count += 1
        if self.count > MAX_VERTICES:
            self.fail("resources", f"has more than {MAX_VERTICES} entries; remove some")
        if nested and data.get("parent") is not None:
            self.fail(f"{path}.parent", "applies only to a tree's root; remove it: `with` already sets the parent")
        return _Entry(
            path=path,
            type=self.type_at(f"{path}.type", data.get("type")),
            name=self.name_at(f"{path}.name", data.get("name")),
            parent=self.name_at(f"{path}.parent", data.get("parent")) or CLUSTER,
            count=self.number_at(f"{path}.count", data.get("count"), _NO_COUNT, MAX_VERTICES),
            sharing=self.number_at(f"{path}.sharing", data.get("sharing"), _NO_SHARING, MOST_SHARING),
            down=self.status_at(f"{path}.status", data.get("status")) == DOWN,
            own=self.attributes_at(f"{path}.attributes", data.get("attributes")),
            children=self.entries(f"{path}.with", data.get("with"), nested=True),
        )

    def type_at(self, path: str, value: Any) -> str:
        if value is None or value == "":
            self.fail(path, "is missing; name the resource's type, for example `type: qpu`")
        if not isinstance(value, str):
            self.fail(path, "must be a word, for example `type: qpu`")
        try:
            names.check_type(value)
        except NamingError as error:
            self.fail(path, str(error))
        return value

    def name_at(self, path: str, value: Any) -> str | None:
        if value is None:
            return None
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            self.fail(path, f"{shown(value)} is not a valid name; use at most 253 letters, digits and . _ : @ + -, "
                      "with a letter or digit first")  # fmt: skip
        return value

    def number_at(self, path: str, value: Any, problem: str, most: int) -> int:
        if value is None:
            return 1
        if not isinstance(value, str) or not re.fullmatch(r"[0-9]{1,9}", value) or not 1 <= int(value) <= most:
            self.fail(path, f"{shown(value)} {problem}")
        return int(value)

    def status_at(self, path: str, value: Any) -> str:
        if value is not None and value not in (UP, DOWN):
            self.fail(path, f"{shown(value)} is not a valid status; use {UP} or {DOWN}")
        return value or UP

    def attributes_at(self, path: str, value: Any) -> dict[str, str | None]:
        if isinstance(value, str):
            if value not in self.sets:
                self.fail(path, f"refers to {shown(value)}, which is not in the top-level `attributes:`; "
                          f"it defines {listed(self.sets)}")  # fmt: skip
            return self.sets[value]
        return self.attribute_map(path, value)

    def attribute_map(self, path: str, value: Any) -> dict[str, str | None]:
        if isinstance(value, list):
            self.fail(path, "must be `key: value` lines, or the name of a set in the top-level `attributes:`")
        found: dict[str, str | None] = {}
        for key, item in self.mapping_at(path, value).items():
            if isinstance(item, (dict, list)):
                self.fail(f"{path}.{plain(key)}", "must be a string, a number, true or false")
            try:
                names.check_attribute(key, item or "")
            except NamingError as error:
                self.fail(f"{path}.{plain(key)}", str(error))
            found[key] = item or None
        self.keys |= found.keys()
        if len(self.keys) > MAX_KEYS:
            self.fail(path, f"exceeds the limit of {MAX_KEYS} different keys in a file; remove some")
        return found

    def attached(self, entries: tuple[_Entry, ...]) -> list[_Entry]:
        """Attach each tree whose parent names another resource below that resource."""
        named = self.named(entries)
        below: dict[str, list[_Entry]] = {}
        roots = []
        for root in entries:
            if root.parent in named:
                if named[root.parent].count > 1:
                    self.fail(f"{root.path}.parent", f"{shown(root.parent)} stands for {named[root.parent].count} "
                              "resources; attach the tree to a resource with count 1")  # fmt: skip
                below.setdefault(root.parent, []).append(root)
            else:
                roots.append(root)
        self.check_levels(entries, named)
        return [_with_attached(root, below) for root in roots]

    def check_levels(self, entries: tuple[_Entry, ...], named: Mapping[str, _Entry]) -> None:
        """Reject trees below themselves, and trees that are nested too deeply."""
        tops = {root.path: root for root in entries}
        for root in entries:
            levels = 1 + max(entry.level for entry in root.walk())
            seen, at = {root.path}, root
            while at.parent in named:
                parent = named[at.parent]
                if parent.top == root.path:
                    self.fail(f"{root.path}.parent", f"{shown(root.parent)} is below this resource; "
                              "choose another parent")  # fmt: skip
                if parent.top in seen:  # a cycle, which is reported for its own root
                    break
                levels += 1 + parent.level
                if levels > MAX_LEVELS:
                    self.fail(f"{root.path}.parent", f"nests more than {MAX_LEVELS} levels; flatten the tree")
                seen.add(parent.top)
                at = tops[parent.top]

    def named(self, entries: tuple[_Entry, ...]) -> dict[str, _Entry]:
        found: dict[str, _Entry] = {}
        for entry in (entry for root in entries for entry in root.walk()):
            if entry.name is None:
                continue
            if entry.name == CLUSTER or entry.name in found:
                other = found[entry.name].path if entry.name in found else "the graph's root"
                self.fail(f"{entry.path}.name", f"{shown(entry.name)} is already the name of {other}; choose another")
            found[entry.name] = entry
        return found

    def resolved(self, entry: _Entry, above: _Attributes, siblings: int, *, down: bool) -> VirtualResource:
        """Resolve an entry below `siblings` equal resources, which may be down."""
        down = down or entry.down
        attributes, number = self.inherited(entry, above), siblings * entry.count
        self.attributes_of_all += _vertices(number, entry.sharing, 0) * attributes.size
        if self.attributes_of_all > MAX_ATTRIBUTES_OF_ALL:
            self.fail(f"{entry.path}.attributes", "make the attributes of all vertices exceed "
                      f"{MAX_ATTRIBUTES_OF_ALL >> 20} MiB; shorten them, or lower a count")  # fmt: skip
        number *= entry.sharing
        children = tuple(self.resolved(child, attributes, number, down=down) for child in entry.children)
        return VirtualResource(
            entry.type, entry.name, entry.parent, entry.count, attributes.values, children, down, entry.sharing
        )

    def inherited(self, entry: _Entry, above: _Attributes) -> _Attributes:
        """The entry's attributes, including those inherited from the resources above it."""
        if not entry.own:
            return above
        merged = {**above.values, **entry.own}
        values = {key: value for key, value in merged.items() if value is not None}
        size = sum(len(names.attribute_annotation(key)) + len(value.encode()) for key, value in values.items())
        if size > MAX_ATTRIBUTES:
            self.fail(f"{entry.path}.attributes", f"take {size} bytes as annotations, including inherited ones, and "
                      f"the limit is {MAX_ATTRIBUTES >> 10} KiB; shorten them")  # fmt: skip
        return _Attributes(values, size)


def _vertices(count: int, sharing: int, inside: int) -> int:
    """The number of vertices of `count` equal resources, each with `inside` vertices below it. A shared resource has a
    place for each pod, with its own copy of the vertices below.
    """
    return count * (1 + (inside if sharing == 1 else sharing * (1 + inside)))


def _with_attached(entry: _Entry, below: Mapping[str, list[_Entry]]) -> _Entry:
    children = (*entry.children, *(below.get(entry.name, []) if entry.name else []))
    return replace(entry, children=tuple(_with_attached(child, below) for child in children))
