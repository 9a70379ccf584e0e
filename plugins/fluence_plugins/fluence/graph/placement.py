"""What an allocation (R) means: which hosts hold what, and which devices of which backend.

R lists every vertex on the way to what was taken. Only what was taken counts; the rest is the path to it.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fluence_plugins.fluence.errors import AllocationError, AttributeConflictError
from fluence_plugins.fluence.graph.cluster_graph import CORE, GPU, GPU_OF, MEMORY, NODE, POD
from fluence_plugins.fluence.graph.jgf import SUBSYSTEM
from fluence_plugins.resources import names

_TOLD = 4
"""How many hosts a line of the log names."""


@dataclass(frozen=True, slots=True)
class HostHolding:
    """What is held of one host: indices of cores and gpus, MiB of its memory pool.

    `exclusive` is set where the host itself was taken, as the policies that hand out whole nodes do. Where cpu is
    counted in millicores, these and units of the host's `pods` are held, and no cores. `others` are the indices of
    vertices of further types, by type in order: the other kinds of gpu.
    """

    name: str
    path: str
    cores: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()
    memory_mib: int = 0
    exclusive: bool = False
    millicores: int = 0
    pods: int = 0
    others: tuple[tuple[str, tuple[int, ...]], ...] = ()

    @property
    def told(self) -> str:
        """The amounts in words: `2 cores, 512 MiB`."""
        found = [(len(self.cores), "cores"), (self.millicores, "millicores"), (len(self.gpus), "gpus")]
        found += [(len(indices), kind.removeprefix(GPU_OF)) for kind, indices in self.others]
        found.append((self.memory_mib, "MiB"))
        return ", ".join(f"{amount} {unit}" for amount, unit in found if amount) or "a place"


@dataclass(frozen=True, slots=True)
class DeviceHolding:
    """One virtual vertex that is held, with everything in it."""

    path: str
    backend: str
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Placement:
    """Hosts and devices of one or several allocations, each sorted by path."""

    hosts: tuple[HostHolding, ...] = ()
    devices: tuple[DeviceHolding, ...] = ()

    @property
    def backends(self) -> tuple[str, ...]:
        """The names of the trees that devices come from, each once, sorted."""
        return tuple(sorted({device.backend for device in self.devices}))

    @property
    def backend(self) -> str:
        """The backends as the annotation and `FLUXION_BACKEND` give them: comma-separated, empty for none."""
        return ",".join(self.backends)

    @property
    def summary(self) -> str:
        """Where it is, in a bounded line: `2 cores, 512 MiB of n1`; `81 devices of aurora: /cluster/… and 80 more`."""
        told = [f"{host.told} of {host.name}" for host in self.hosts[:_TOLD]]
        if self.devices:
            more = f" and {len(self.devices) - 1} more" if len(self.devices) > 1 else ""
            told.append(f"{len(self.devices)} devices of {self.backend}: {self.devices[0].path}{more}")
        return "; ".join(told)

    @property
    def attributes(self) -> dict[str, str]:
        """The attributes of all devices. Raises AttributeConflictError where two of them disagree."""
        merged: dict[str, tuple[str, str]] = {}
        for device in self.devices:
            for key, value in sorted(device.attributes.items()):
                known, path = merged.setdefault(key, (value, device.path))
                if known != value:
                    raise AttributeConflictError(
                        f"devices {path} ({key}={known}) and {device.path} ({key}={value}) disagree on {key!r}; "
                        f"ask for one value with {names.REQUIRE_ANNOTATION_PREFIX}{key}"
                    )
        return {key: value for key, (value, _) in sorted(merged.items())}

    def annotations(self) -> dict[str, str]:
        """Return what a pod is told of its devices: `backend` and `attr-<key>`; nothing without devices."""
        if not self.devices:
            return {}
        found = {names.attribute_annotation(key): value for key, value in self.attributes.items()}
        return {names.BACKEND_ANNOTATION: self.backend} | found

    def merged(self, *others: "Placement") -> "Placement":
        """Return the placement of several allocations together, which must not share a vertex."""
        if not others:
            return self
        parts = (self, *others)
        hosts = sorted((host for part in parts for host in part.hosts), key=lambda host: host.path)
        devices = sorted((device for part in parts for device in part.devices), key=lambda device: device.path)
        return Placement(tuple(hosts), tuple(devices))

    def split(self, paths: frozenset[str]) -> tuple["Placement | None", "Placement | None"]:
        """Return (what is held at any of these paths, of hosts or devices, and below them, what else is held); None for
        nothing.
        """
        hosts = [[host for host in self.hosts if (host.path in paths) is here] for here in (True, False)]
        devices = [[d for d in self.devices if _is_within(d.path, paths) is here] for here in (True, False)]
        lost, rest = (Placement(tuple(h), tuple(d)) if h or d else None for h, d in zip(hosts, devices, strict=True))
        return lost, rest

    def pieces(self) -> Iterator["Placement"]:
        """What is held of the hosts, and each of the devices, one by one."""
        if self.hosts:
            yield Placement(self.hosts)
        for device in self.devices:
            yield Placement((), (device,))


@dataclass(frozen=True, slots=True)
class _Taken:
    type: str
    path: str
    id: int | None
    size: int
    exclusive: bool
    properties: Mapping[str, str]

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def virtual(self) -> bool:
        return names.VIRTUAL_TRUE in self.properties

    @property
    def core_pool(self) -> bool:
        """Whether it is the pool of a host's millicores, which bears no number; each single core bears one."""
        return self.type == CORE == self.name and self.id is not None

    @property
    def index(self) -> int:
        if self.id is not None:
            return self.id
        digits = self.name[len(self.name.rstrip("0123456789")) :]
        if not digits:
            raise AllocationError(f"{self.path}: has neither an id nor a number at its name's end; R needs one")
        return int(digits)


def placement_from_allocation(allocation: Mapping[str, Any] | str) -> Placement:
    """Read an allocation in the jgf, rv1 or rfc40 form, as a mapping or JSON text.

    A `node` vertex with `virtual=true` is a device; any other `node` vertex is a host. Paths leave out the levels above
    a host (see `cluster_graph`). The result has the hosts of
    which something is held, and the outermost devices held (what is in them is held with them). Raises
    AllocationError where R cannot be read.
    """
    vertices = {vertex.path: vertex for vertex in _vertices(allocation)}
    hosts: dict[str, list[_Taken]] = {}
    devices = []
    for vertex in vertices.values():
        above = _above(vertex.path, vertices)
        if vertex.type == NODE and vertex.virtual:
            if vertex.exclusive and not any(node.virtual and node.exclusive for node in above):
                devices.append(_device(vertex, above))
        elif vertex.type == NODE:
            if vertex.exclusive:
                hosts.setdefault(vertex.path, [])
        elif vertex.type in (CORE, GPU, MEMORY, POD) or vertex.type.startswith(GPU_OF):
            hosts.setdefault(_host_of(vertex, above).path, []).append(vertex)
    found = (_host(vertices[path], taken, _above(path, vertices)) for path, taken in hosts.items())
    held = sorted(found, key=lambda host: host.path)
    return Placement(tuple(held), tuple(sorted(devices, key=lambda device: device.path)))


def placement_on_host(allocation: Mapping[str, Any]) -> Placement:
    """`placement_from_allocation` of what is held of one host, in jgf as the matcher writes it: far sooner."""
    path, exclusive = "", False
    cores: list[int] = []
    gpus: list[int] = []
    others: dict[str, list[int]] = {}
    memory = millicores = pods = 0
    for node in allocation["graph"]["nodes"]:
        metadata = node["metadata"]
        kind = metadata["type"]
        if kind == CORE:
            if metadata.get("name") == CORE:  # it is written where it is not the type and a number
                millicores += metadata.get("size", 1)
            else:
                cores.append(metadata["id"])
        elif kind == MEMORY:
            memory += metadata.get("size", 1)
        elif kind == GPU:
            gpus.append(metadata["id"])
        elif kind == POD:
            pods += metadata.get("size", 1)
        elif kind.startswith(GPU_OF):
            others.setdefault(kind, []).append(metadata["id"])
        elif kind == NODE:
            if path:  # the host has devices, which are held with it
                return placement_from_allocation(allocation)
            path, exclusive = metadata["paths"][SUBSYSTEM], metadata.get("exclusive", False)
    name = path.rpartition("/")[2]
    path = f"/{path.split('/', 2)[1]}/{name}"  # without the levels above it
    more = _in_order(others) if others else ()
    return Placement(
        (HostHolding(name, path, tuple(sorted(cores)), tuple(sorted(gpus)), memory, exclusive, millicores, pods, more),)
    )


def _in_order(others: Mapping[str, list[int]]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((kind, tuple(sorted(indices))) for kind, indices in sorted(others.items()))


def _vertices(allocation: Mapping[str, Any] | str) -> Iterable[_Taken]:
    try:
        data = json.loads(allocation) if isinstance(allocation, str) else allocation
        graph = data.get("graph") or data["scheduling"]["graph"]
        for node in graph["nodes"]:
            metadata = node["metadata"]
            yield _Taken(
                type=metadata["type"],
                path=metadata["paths"][SUBSYSTEM],
                id=metadata.get("id"),
                size=metadata.get("size", 1),
                exclusive=metadata.get("exclusive", False),
                properties=metadata.get("properties") or {},
            )
    except json.JSONDecodeError as error:
        raise AllocationError(f"the allocation is not JSON: {error}") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise AllocationError(f"the allocation is not a graph of vertices with type and paths: {error!r}") from None


def _above(path: str, vertices: Mapping[str, _Taken]) -> list[_Taken]:
    """Return the listed vertices that hold a path, innermost first."""
    found = []
    while path := path.rpartition("/")[0]:
        if path in vertices:
            found.append(vertices[path])
    return found


def _host_of(vertex: _Taken, above: list[_Taken]) -> _Taken:
    for candidate in above:
        if candidate.type == NODE:
            return candidate
    raise AllocationError(f"{vertex.path}: is in no node of the allocation; R needs the whole path")


def _device(vertex: _Taken, above: list[_Taken]) -> DeviceHolding:
    pairs = [names.split_property(name) for name in vertex.properties]
    root = next((node for node in reversed(above) if node.virtual), vertex)
    named = [value for key, value in pairs if key == names.BACKEND_KEY]
    attributes = {key: value for key, value in pairs if key not in names.RESERVED_KEYS}
    return DeviceHolding(_path(vertex, above), named[0] if named else root.name, attributes)


def _path(vertex: _Taken, above: list[_Taken]) -> str:
    """The path without levels: from below the cluster on, that of the outermost host or device."""
    levels = [found for found in above[:-1] if found.type != NODE]
    if not levels:
        return vertex.path
    return above[-1].path + vertex.path.removeprefix(levels[0].path)


def _host(host: _Taken, taken: list[_Taken], above: list[_Taken]) -> HostHolding:
    others: dict[str, list[int]] = {}
    for vertex in taken:
        if vertex.type.startswith(GPU_OF):
            others.setdefault(vertex.type, []).append(vertex.index)
    return HostHolding(
        name=host.name,
        path=_path(host, above),
        cores=tuple(sorted(vertex.index for vertex in taken if vertex.type == CORE and not vertex.core_pool)),
        gpus=tuple(sorted(vertex.index for vertex in taken if vertex.type == GPU)),
        memory_mib=sum(vertex.size for vertex in taken if vertex.type == MEMORY),
        exclusive=host.exclusive,
        millicores=sum(vertex.size for vertex in taken if vertex.core_pool),
        pods=sum(vertex.size for vertex in taken if vertex.type == POD),
        others=_in_order(others),
    )


def overlap(path: str, other: str) -> bool:
    """Whether two vertices are one, or one lies in the other."""
    return path == other or path.startswith(other + "/") or other.startswith(path + "/")


def with_above(path: str) -> Iterator[str]:
    """The path of a vertex, and of all that it lies in but the cluster."""
    while path.count("/") > 1:
        yield path
        path = path.rpartition("/")[0]


def _is_within(path: str, paths: frozenset[str]) -> bool:
    """Whether a path is one of these, or below one."""
    while path:
        if path in paths:
            return True
        path = path.rpartition("/")[0]
    return False
