"""What pods ask for, as jobspecs.

A jobspec carries one constraint, evaluated on every `node` vertex on the way down, so compute (`virtual=false`) and
devices (`virtual=true`) never share one: a class of pods makes one compute jobspec, and one device match per type.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby

from fluence_plugins.fluence.errors import JobspecError, NoMatchingDeviceError, UnknownDeviceTypeError
from fluence_plugins.fluence.graph.accounting import PodShape
from fluence_plugins.fluence.graph.cluster_graph import CORE, GPU, MEMORY, NODE, POD, ClusterGraph, VirtualNode
from fluence_plugins.fluence.graph.jobspec import Jobspec, Resource, Task, slot
from fluence_plugins.resources import names
from fluence_plugins.resources.ranges import ranges

_Attributes = tuple[tuple[str, str], ...]
_LISTED = 8
"""How many names a message lists."""
_REMEMBERED = 1024
"""How many different requests a graph keeps the answers to."""


@lru_cache(_REMEMBERED)
def compute_jobspec_text(shape: PodShape, count: int) -> str:
    """The jobspec of `compute_jobspec` as JSON."""
    return compute_jobspec(shape, count).to_json()


def compute_jobspec(shape: PodShape, count: int) -> Jobspec:
    """Return the jobspec that places `count` pods of one shape.

    One slot for each pod stands at the top level. The matcher lets the levels above a slot be left out and opens
    slots only in a vertex whose own children have the slot's types: a host. So each slot lies within one host, one
    host may carry many, and no host is exclusive. Units of memory, of millicores and of pods come out of the host's
    pools. The allocation is held until it is cancelled (duration 0).
    """
    _check_count(count)
    wanted = ((CORE, shape.cores), (GPU, shape.gpus), *shape.others, (MEMORY, shape.memory_mib), (POD, shape.pods))
    return Jobspec.of(
        slot(count, *(Resource(kind, amount) for kind, amount in wanted if amount)),
        constraints={"properties": [names.VIRTUAL_FALSE]},
        tasks=(Task.per_slot("pod"),),
    )


def device_jobspecs(
    graph: ClusterGraph,
    device_type: str,
    count: int,
    require: Mapping[str, str] | None = None,
    backend: str | None = None,
    slots: int = 1,
    prefer: Mapping[str, str] | None = None,
) -> tuple[Jobspec, ...]:
    """Return the jobspecs, to be tried in order, that each get `slots` times `count` devices of one type.

    They satisfy `require` (attribute to value) and belong to `backend`, if given. The devices of a slot come from one
    resource tree; so do those of all slots, except where each slot is a single root.

    Those that satisfy more of `prefer` (attribute, or `backend`, to value) come first, the last are as without it. Of
    several slots there are only the first: where too few of the devices that satisfy the most are free, each slot is
    to be asked for by itself, that one may still get such a device. Raises UnknownDeviceTypeError for
    a type in no tree, NoMatchingDeviceError where no tree could ever hold as many; both say what there is.

    Why the shape is what it is. Every level of a tree is a `node` vertex, and a request for a `node` takes the first
    one on the way down that satisfies the constraint. Classes are propagated up, so with `slot{node}` alone a request
    for a `qubit` would take the whole `qdevice` above it. Levels may be left out only above the first match, and the
    first match is the tree's root. So each level is spelled out:

    - root: `slot{node: count}`. The roots of one tree (its `count`) are siblings.
    - one level down: `node: 1 {slot{node: count}}`. The outer node is outside the slot, hence shared, and one, which
      is what holds the devices in one tree.
    - n levels down: n outer nodes. Where one parent has too few, the innermost outer node asks for `p` parents with
      `count / p` devices each, for every p that divides the count.

    Of something that pods share each place is such a vertex, one level below it, and a pod gets one place of each of
    `count` different ones: `node: count {slot{node: 1}}`, for one pod at a time (with more slots it raises
    NoMatchingDeviceError where all of the type is shared). What lies in a place comes from that place alone: each has
    all that is inside.

    Below the slot all is exclusive: a device is free only while nothing in it is held, and holds everything in it.
    One shape fits one depth, so a type that occurs at several depths gives several jobspecs, shallowest first.

    The constraint is `virtual=true`, `class=<type>` and the required properties. Properties alone can be wrong in three
    cases: another resource of the same depth merely *contains* the type; an ancestor lacks the required attribute
    (its child overrides it); or the tree hangs below a physical host (`virtual=false`). There, and to keep one of
    several trees of roots apart, the ranks of the right devices and of what is above them are named as well.
    """
    _check_count(count)
    _check_count(slots)
    asked = _DeviceRequest(device_type, count, _sorted(require), backend, slots, _sorted(prefer))
    known = graph.memo.get(asked)
    if known is None:
        if len(graph.memo) >= _REMEMBERED:
            graph.memo.clear()
        known = graph.memo[asked] = _by_preference(graph, asked)
    found: tuple[Jobspec, ...] = known
    return found


@dataclass(frozen=True, slots=True)
class _DeviceRequest:
    type: str
    count: int
    require: _Attributes
    backend: str | None
    slots: int
    prefer: _Attributes = ()
    least: int = 0
    """How many of `prefer` a device satisfies, at least."""

    def __str__(self) -> str:
        return in_words(dict(self.require), self.backend)


def _by_preference(graph: ClusterGraph, asked: _DeviceRequest) -> tuple[Jobspec, ...]:
    """The jobspecs of each number of satisfied preferences that devices have, the highest first."""
    first, *others = sorted({preferences_met(node, asked.prefer) for node in _matching(graph, asked)}, reverse=True)
    if not others:
        return _device_jobspecs(graph, asked)
    if asked.slots > 1:
        return _device_jobspecs(graph, replace(asked, least=first))
    found: list[Jobspec] = []
    for least in (first, *others[:-1]):
        with suppress(NoMatchingDeviceError):  # there are more that are liked less
            found.extend(_device_jobspecs(graph, replace(asked, least=least)))
    return (*found, *_device_jobspecs(graph, asked))


def _device_jobspecs(graph: ClusterGraph, asked: _DeviceRequest) -> tuple[Jobspec, ...]:
    wanted = [names.VIRTUAL_TRUE, names.class_property(asked.type)]
    wanted += [names.property_of(key, value) for key, value in asked.require]
    if asked.backend is not None:
        wanted.append(names.property_of(names.BACKEND_KEY, asked.backend))
    matching = [node for node in _matching(graph, asked) if not node.closed]
    jobspecs = tuple(
        Jobspec.of(
            request,
            constraints=_constraints(graph, wanted, targets),
            tasks=(Task.per_slot("pod", "device"),),
        )
        for targets in _reachable_together(matching, single=asked.count == 1)
        for request in _shapes(graph, targets, asked)
    )
    if not jobspecs:
        if not matching:
            raise NoMatchingDeviceError(f"every {asked.type}{asked} is held by more pods than may share it now")
        number = asked.count * asked.slots
        devices = {names.without_places(node.path): node.backend for node in matching}
        most = max(Counter(devices.values()).values())
        if number <= most:
            raise NoMatchingDeviceError(
                f"{number} {asked.type}{asked} cannot be taken in equal shares from the vertices of one tree that hold "
                f"them, of which it has {most}; ask for another number"
            )
        raise NoMatchingDeviceError(f"no tree has {number} {asked.type}{asked}, at most {most}; ask for fewer")
    return jobspecs


def _check_count(count: int) -> None:
    if count < 1:
        raise JobspecError(f"count {count} asks for nothing; use at least 1")


def matching_devices(
    graph: ClusterGraph, device_type: str, require: Mapping[str, str], backend: str | None = None
) -> list[VirtualNode]:
    """Return the vertices of a type that satisfy `require` and belong to `backend`, held or not, but for those down.

    Of what pods share these are its places.

    Raises UnknownDeviceTypeError for a type in no tree, NoMatchingDeviceError where none is left.
    """
    return _matching(graph, _DeviceRequest(device_type, 1, _sorted(require), backend, 1))


def preferences_met(node: VirtualNode, prefer: Iterable[tuple[str, str]]) -> int:
    """How many of the preferences (attribute, or `backend`, and value) a device satisfies."""
    return sum(
        (node.backend if key == names.BACKEND_KEY else node.attributes.get(key)) == value for key, value in prefer
    )


def _matching(graph: ClusterGraph, asked: _DeviceRequest) -> list[VirtualNode]:
    of_type = [node for node in graph.virtual.values() if node.type == asked.type and not node.places]
    if not of_type:
        known = ", ".join(sorted({node.type for node in graph.virtual.values()})) or "none"
        raise UnknownDeviceTypeError(f"resource type {asked.type!r} is in no tree of the graph; modelled are: {known}")
    found = [
        node
        for node in of_type
        if asked.backend in (None, node.backend)
        and all(node.attributes.get(key) == value for key, value in asked.require)
        and (not asked.least or preferences_met(node, asked.prefer) >= asked.least)
    ]
    if not found:
        offers = {node.backend: node.attributes for node in sorted(of_type, key=lambda node: (node.backend, node.path))}
        listed = "; ".join(f"{backend}{_in_brackets(attributes)}" for backend, attributes in offers.items())
        raise NoMatchingDeviceError(f"no {asked.type}{asked} exists; offered are {listed}")
    up = [node for node in found if not node.down]
    if not up:
        down = sorted({node.name if not node.level else f"{node.name} of {node.backend}" for node in found})
        more = [f"{len(down) - _LISTED} more"] if len(down) > _LISTED else []
        raise NoMatchingDeviceError(
            f"every {asked.type}{asked} is down in the resources file: {', '.join([*down[:_LISTED], *more])}"
        )
    return up


def down_devices(
    graph: ClusterGraph, device_type: str, require: Mapping[str, str], backend: str | None = None
) -> list[VirtualNode]:
    """Return the vertices of a type that satisfy `require`, belong to `backend`, and are down."""
    return [
        node
        for node in graph.virtual.values()
        if node.down
        and not node.places
        and node.type == device_type
        and backend in (None, node.backend)
        and all(node.attributes.get(key) == value for key, value in require.items())
    ]


def in_words(require: Mapping[str, str], backend: str | None) -> str:
    """What follows a type where attributes or a backend are required: ` with region=east of backend aurora`."""
    pairs = ", ".join(f"{key}={value}" for key, value in sorted(require.items()))
    return (f" with {pairs}" if pairs else "") + (f" of backend {backend}" if backend else "")


def _in_brackets(attributes: Mapping[str, str]) -> str:
    pairs = ", ".join(f"{key}={value}" for key, value in sorted(attributes.items()))
    return f" ({pairs})" if pairs else ""


def _reachable_together(found: list[VirtualNode], single: bool) -> Iterator[list[VirtualNode]]:
    """Group devices that one jobspec can reach: those of one depth.

    Several devices of one pod come from one tree, so roots of different trees are kept apart; and they agree on their
    attributes, so where one tree holds devices of different attributes, each kind is a group.
    """
    trees: dict[str, set[_Attributes]] = {}
    for node in found:
        trees.setdefault(node.backend, set()).add(_sorted(node.attributes))
    by_attributes = not single and any(len(kinds) > 1 for kinds in trees.values())

    def key(node: VirtualNode) -> tuple[int, int, int, bool, bool, _Attributes]:
        entry = node.entry if node.level == 0 and not single else -1
        attributes = _sorted(node.attributes) if by_attributes else ()
        return len(node.above), node.level, entry, node.is_place, _lies_in_place(node), attributes

    for _, group in groupby(sorted(found, key=key), key=key):
        yield list(group)


def _sorted(attributes: Mapping[str, str] | None) -> _Attributes:
    return tuple(sorted((attributes or {}).items()))


def _lies_in_place(node: VirtualNode) -> bool:
    """Whether what it lies in is a place of something shared."""
    return bool(node.above) and not node.is_place and names.is_place(node.above[-1])


def _shapes(graph: ClusterGraph, targets: list[VirtualNode], asked: _DeviceRequest) -> Iterator[Resource]:
    """Yield the requests that can reach devices of one depth, to be tried in order."""
    first, count = targets[0], asked.count
    if not first.is_place:
        for parents in _splits(targets, count, asked.slots):
            request = slot(asked.slots, Resource(NODE, count // parents), label="device")
            yield _wrapped(request, len(first.above), parents)
        return
    if asked.slots > 1:
        return
    shared = [graph.virtual[path] for path in sorted({node.above[-1] for node in targets})]
    for parents in _splits(shared, count, 1):
        request = Resource(NODE, count // parents, (slot(1, Resource(NODE, 1), label="device"),))
        yield _wrapped(request, len(shared[0].above), parents)


def _splits(targets: list[VirtualNode], count: int, slots: int) -> Iterator[int]:
    """Yield over how many parents of one tree the devices can be spread evenly, fewest first."""
    per_parent = Counter(node.above for node in targets)
    if _lies_in_place(targets[0]):
        per_parent = Counter({above: number for above, number in per_parent.items() if number >= count * slots})
        if per_parent:
            yield 1  # other places have the same devices
        return
    for parents in range(1, 1 + min(count, len(per_parent) if targets[0].level > 1 else 1)):
        if count % parents:
            continue
        able = [above for above, number in per_parent.items() if number * parents >= count * slots]
        siblings = Counter(above[:-1] for above in able)
        if max(siblings.values(), default=0) >= parents:
            yield parents


def _wrapped(request: Resource, depth: int, parents: int) -> Resource:
    """A request within so many levels, in so many vertices of the innermost."""
    for level in range(depth):
        request = Resource(NODE, parents if level == 0 else 1, (request,))
    return request


def _constraints(graph: ClusterGraph, wanted: list[str], targets: list[VirtualNode]) -> dict[str, object]:
    """Return the properties where they select exactly the targets at their depth, else properties and ranks."""
    target_paths = {node.path for node in targets}
    above = {path for node in targets for path in node.above}
    properties = frozenset(wanted)
    passing = {node.path for node in graph.virtual.values() if properties <= node.properties}
    depth = len(targets[0].above)
    level = (graph.virtual[path] for path in passing if len(graph.virtual[path].above) == depth)
    reached = {node.path for node in level if passing.issuperset(node.above)}
    if above <= passing and reached == target_paths:
        return {"properties": wanted}
    ranks = sorted(graph.vertex(path).options.rank for path in target_paths | above)
    shared = [name for name in wanted if all(name in graph.vertex(path).options.node_properties for path in above)]
    by_rank = {"ranks": [ranges(ranks)]}
    return {"and": [{"properties": shared}, by_rank]} if shared else {**by_rank}
