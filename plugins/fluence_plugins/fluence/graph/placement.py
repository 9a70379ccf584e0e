"""The content of an allocation (R) by names: amounts of hosts, and devices with their backends.

R also lists the vertices above each allocated one; a placement has the allocated ones only.
"""

from collections.abc import Iterator, Mapping

import msgspec

from fluence_plugins.fluence.errors import AttributeConflictError
from fluence_plugins.fluence.graph.cluster_graph import GPU_OF
from fluence_plugins.resources import names

_SUMMARIZED = 4
"""How many hosts a log line names."""


class HostHolding(msgspec.Struct, frozen=True):
    """The allocated part of one host: indices of cores and GPUs, and MiB of its memory pool.

    `exclusive`: the host itself is allocated, as policies for whole nodes do. If CPU is counted in millicores, it has
    `millicores` and `pods`, and no cores. `others` are indices of the other kinds of gpu, by type, in order.
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
    def summary(self) -> str:
        """The amounts in words: `2 cores, 512 MiB`."""
        found = [(len(self.cores), "cores"), (self.millicores, "millicores"), (len(self.gpus), "gpus")]
        found += [(len(indices), kind.removeprefix(GPU_OF)) for kind, indices in self.others]
        found.append((self.memory_mib, "MiB"))
        return ", ".join(f"{amount} {unit}" for amount, unit in found if amount) or "a place"


class DeviceHolding(msgspec.Struct, frozen=True):
    """One allocated virtual vertex, with all vertices below it."""

    path: str
    backend: str
    attributes: Mapping[str, str] = msgspec.field(default_factory=dict)


class Placement(msgspec.Struct, frozen=True):
    """Hosts and devices of one or several allocations, each sorted by path."""

    hosts: tuple[HostHolding, ...] = ()
    devices: tuple[DeviceHolding, ...] = ()

    @property
    def backend(self) -> str:
        """The value of the annotation and of `FLUXION_BACKEND`: the sorted names of the devices' trees, with commas."""
        return ",".join(sorted({device.backend for device in self.devices}))

    @property
    def summary(self) -> str:
        """One bounded line: `2 cores, 512 MiB of n1`; `81 devices of aurora: /cluster/… and 80 more`."""
        parts = [f"{host.summary} of {host.name}" for host in self.hosts[:_SUMMARIZED]]
        if self.devices:
            more = f" and {len(self.devices) - 1} more" if len(self.devices) > 1 else ""
            parts.append(f"{len(self.devices)} devices of {self.backend}: {self.devices[0].path}{more}")
        return "; ".join(parts)

    @property
    def attributes(self) -> dict[str, str]:
        """The attributes of all devices. Raises AttributeConflictError if two of them disagree."""
        merged: dict[str, tuple[str, str]] = {}
        for device in self.devices:
            for key, value in sorted(device.attributes.items()):
                known, path = merged.setdefault(key, (value, device.path))
                if known != value:
                    raise AttributeConflictError(
                        f"devices {path} ({key}={known}) and {device.path} ({key}={value}) disagree on {key!r}; "
                        f"request one value with {names.REQUIRE_ANNOTATION_PREFIX}{key}",
                        key,
                    )
        return {key: value for key, (value, _) in sorted(merged.items())}

    def annotations(self) -> dict[str, str]:
        """Return the annotations that describe a pod's devices, `backend` and `attr-<key>`; empty without devices."""
        if not self.devices:
            return {}
        found = {names.attribute_annotation(key): value for key, value in self.attributes.items()}
        return {names.BACKEND_ANNOTATION: self.backend} | found

    def merged(self, *others: "Placement") -> "Placement":
        """Return the placement of several allocations together. They must not share a vertex."""
        if not others:
            return self
        parts = (self, *others)
        hosts = sorted((host for part in parts for host in part.hosts), key=lambda host: host.path)
        devices = sorted((device for part in parts for device in part.devices), key=lambda device: device.path)
        return Placement(tuple(hosts), tuple(devices))

    def split(self, paths: frozenset[str]) -> tuple["Placement | None", "Placement | None"]:
        """Return the part at or below these paths of hosts and devices, and the rest; None for an empty one."""
        hosts = [[host for host in self.hosts if (host.path in paths) is here] for here in (True, False)]
        devices = [[d for d in self.devices if _is_within(d.path, paths) is here] for here in (True, False)]
        lost, rest = (Placement(tuple(h), tuple(d)) if h or d else None for h, d in zip(hosts, devices, strict=True))
        return lost, rest

    def pieces(self) -> Iterator["Placement"]:
        """The parts of the placement: one for the hosts, and one for each device."""
        if self.hosts:
            yield Placement(self.hosts)
        for device in self.devices:
            yield Placement((), (device,))


def overlap(path: str, other: str) -> bool:
    """Whether two paths are equal, or one vertex contains the other."""
    return path == other or path.startswith(other + "/") or other.startswith(path + "/")


def with_above(path: str) -> Iterator[str]:
    """The path of a vertex, and those of all vertices that contain it, without the cluster."""
    while path.count("/") > 1:
        yield path
        path = path.rpartition("/")[0]


def _is_within(path: str, paths: frozenset[str]) -> bool:
    """Whether a path is one of these paths, or below one."""
    while path:
        if path in paths:
            return True
        path = path.rpartition("/")[0]
    return False
