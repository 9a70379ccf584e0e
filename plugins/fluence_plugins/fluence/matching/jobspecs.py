"""The translation of pods' requests into jobspecs.

A jobspec has one constraint, which the matcher evaluates on every `node` vertex on the way down. So hosts
(`virtual=false`) and devices (`virtual=true`) need separate jobspecs: a class of pods has one compute jobspec, and one
device match per type.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import groupby

import msgspec
from msgspec.structs import replace

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
"""How many requests a graph caches."""


@lru_cache(_REMEMBERED)
def compute_jobspec_text(shape: PodShape, count: int) -> str:
    """The jobspec of `compute_jobspec` as JSON."""
    return compute_jobspec(shape, count).to_json()


def compute_jobspec(shape: PodShape, count: int) -> Jobspec:
    """Return the jobspec that places `count` pods of one shape.

    It has one slot per pod at the top level. A jobspec may omit the levels above a slot, and the matcher opens slots
    only in a vertex whose children have the slot's types: a host. So each slot is within one host, a host may have
    many, and no host is exclusive. Units of memory, millicores and pods come from the host's pools. The duration is 0:
    the allocation lasts until it is cancelled.
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
    """Return the jobspecs, in the order to try them, that each request `slots` times `count` devices of one type.

    The devices satisfy `require` (attribute to value) and belong to `backend`, if given. The devices of a slot come
    from one resource tree, and so do those of all slots, unless each slot is a single root.

    Jobspecs whose devices satisfy more of `prefer` (attribute, or `backend`, to value) come first; the last ones are
    without preferences. For several slots the result has only the first jobspecs: if too few of the best devices are
    free, the caller matches each slot by itself, so that some may still get one. Raises UnknownDeviceTypeError for a
    type that no tree has, and NoMatchingDeviceError if no tree can ever have as many. Both name the existing ones.

    The shape of a jobspec: every level of a tree is a `node` vertex, and a request for a `node` matches the first one
    on the way down that satisfies the constraint. A vertex has the classes of its descendants, so with `slot{node}`
    alone a request for a `qubit` would match the whole `qdevice` above it. A jobspec may omit levels only above the
    first match, which is the tree's root. So it has a request for each level:

    - root: `slot{node: count}`. The roots of one tree (its `count`) are siblings.
    - one level down: `node: 1 {slot{node: count}}`. The outer node is outside the slot, so it is shared; there is one,
      so all devices come from one tree.
    - n levels down: n outer nodes. If one parent has too few, the innermost outer node requests `p` parents with
      `count / p` devices each, for every p that divides the count.

    Each place of a shared device is such a vertex one level below it, and a pod gets one place of each of `count`
    devices: `node: count {slot{node: 1}}`, for one pod at a time (with more slots it raises NoMatchingDeviceError if
    all devices of the type are shared). A device below a shared one comes from one place, because each place contains
    all of them.

    All vertices below the slot are exclusive: a device is free only while everything in it is free. A shape fits
    one depth, so a type that occurs at several depths needs several jobspecs, the shallowest first.

    The constraint is `virtual=true`, `class=<type>` and the required properties. Properties are not enough in three
    cases: another resource of the same depth only *contains* the type; an ancestor lacks the required attribute, which
    its child overrides; or the tree is below a physical host (`virtual=false`). In these cases, and to select one of
    several trees of roots, the constraint also has the ranks of the devices and of the vertices above them.
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


class _DeviceRequest(msgspec.Struct, frozen=True):
    type: str
    count: int
    require: _Attributes
    backend: str | None
    slots: int
    prefer: _Attributes = ()
    least: int = 0
    """The minimum number of preferences in `prefer` that a device satisfies."""

    def __str__(self) -> str:
        return in_words(dict(self.require), self.backend)


def _by_preference(graph: ClusterGraph, asked: _DeviceRequest) -> tuple[Jobspec, ...]:
    """The jobspecs for each number of satisfied preferences that occurs, the highest first."""
    first, *others = sorted({preferences_met(node, asked.prefer) for node in _matching(graph, asked)}, reverse=True)
    if not others:
        return _device_jobspecs(graph, asked)
    if asked.slots > 1:
        return _device_jobspecs(graph, replace(asked, least=first))
    found: list[Jobspec] = []
    for least in (first, *others[:-1]):
        with suppress(NoMatchingDeviceError):  # devices that satisfy fewer may suffice
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
            raise NoMatchingDeviceError(f"each {asked.type}{asked} is held by more pods than may share it now")
        number = asked.count * asked.slots
        devices = {names.without_places(node.path): node.backend for node in matching}
        most = max(Counter(devices.values()).values())
        if number <= most:
            raise NoMatchingDeviceError(
                f"{number} {asked.type}{asked} cannot be divided equally among the parents of the {most} "
                f"{asked.type} in one resource tree; request a different number"
            )
        raise NoMatchingDeviceError(
            f"no resource tree has more than {most} {asked.type}{asked}, and the pod requests {number}; request fewer"
        )
    return jobspecs


def _check_count(count: int) -> None:
    if count < 1:
        raise JobspecError(f"expected a count of at least 1, got {count}")


def matching_devices(
    graph: ClusterGraph, device_type: str, require: Mapping[str, str], backend: str | None = None
) -> list[VirtualNode]:
    """Return the vertices of a type that satisfy `require`, belong to `backend` and are not down, held or not.

    For a shared device these are its places. Raises UnknownDeviceTypeError for a type that no tree has, and
    NoMatchingDeviceError if no vertex is left.
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
        raise UnknownDeviceTypeError(f"no resource tree has type {asked.type!r}; known types: {known}")
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
        raise NoMatchingDeviceError(f"no {asked.type}{asked} exists; the graph has {listed}")
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
    """The text after a type for required attributes and backend: ` with region=east of backend aurora`."""
    pairs = ", ".join(f"{key}={value}" for key, value in sorted(require.items()))
    return (f" with {pairs}" if pairs else "") + (f" of backend {backend}" if backend else "")


def _in_brackets(attributes: Mapping[str, str]) -> str:
    pairs = ", ".join(f"{key}={value}" for key, value in sorted(attributes.items()))
    return f" ({pairs})" if pairs else ""


def _reachable_together(found: list[VirtualNode], single: bool) -> Iterator[list[VirtualNode]]:
    """Group the devices that one jobspec can reach: those of one depth.

    Several devices of one pod must come from one tree, so roots of different trees are in different groups. They must
    agree on their attributes, so if one tree has devices with different attributes, each kind is a group.
    """
    trees: dict[str, set[_Attributes]] = {}
    for node in found:
        trees.setdefault(node.backend, set()).add(_sorted(node.attributes))
    by_attributes = not single and any(len(kinds) > 1 for kinds in trees.values())

    def key(node: VirtualNode) -> tuple[int, int, int, bool, bool, _Attributes]:
        entry = node.entry if node.level == 0 and not single else -1
        attributes = _sorted(node.attributes) if by_attributes else ()
        return len(node.above), node.level, entry, node.is_place, _is_in_place(node), attributes

    for _, group in groupby(sorted(found, key=key), key=key):
        yield list(group)


def _sorted(attributes: Mapping[str, str] | None) -> _Attributes:
    return tuple(sorted((attributes or {}).items()))


def _is_in_place(node: VirtualNode) -> bool:
    """Whether its parent is a place of a shared device."""
    return bool(node.above) and not node.is_place and names.is_place(node.above[-1])


def _shapes(graph: ClusterGraph, targets: list[VirtualNode], asked: _DeviceRequest) -> Iterator[Resource]:
    """Yield the requests that can reach devices of one depth, in the order to try them."""
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
    """Yield the numbers of parents in one tree that can have equal shares of the devices, the lowest first."""
    per_parent = Counter(node.above for node in targets)
    if _is_in_place(targets[0]):
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
    """A request below `depth` levels, in `parents` vertices of the innermost level."""
    for level in range(depth):
        request = Resource(NODE, parents if level == 0 else 1, (request,))
    return request


def _constraints(graph: ClusterGraph, wanted: list[str], targets: list[VirtualNode]) -> dict[str, object]:
    """Return the properties if they select exactly the targets at their depth, else properties and ranks."""
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
