"""What an allocation (R) means: which hosts hold what, and which devices of which backend.

R lists every vertex on the way to what was taken. Only what was taken counts; the rest is the path to it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from fluence_plugins.fluence.errors import AttributeConflictError
from fluence_plugins.fluence.graph.cluster_graph import GPU_OF
from fluence_plugins.resources import names

_SUMMARIZED = 4
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
    def summary(self) -> str:
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
    def backend(self) -> str:
        """The trees that devices come from as the annotation and `FLUXION_BACKEND` give them: their names, each once,
        sorted, with commas between; empty for none.
        """
        return ",".join(sorted({device.backend for device in self.devices}))

    @property
    def summary(self) -> str:
        """Where it is, in a bounded line: `2 cores, 512 MiB of n1`; `81 devices of aurora: /cluster/… and 80 more`."""
        parts = [f"{host.summary} of {host.name}" for host in self.hosts[:_SUMMARIZED]]
        if self.devices:
            more = f" and {len(self.devices) - 1} more" if len(self.devices) > 1 else ""
            parts.append(f"{len(self.devices)} devices of {self.backend}: {self.devices[0].path}{more}")
        return "; ".join(parts)

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
                        f"ask for one value with {names.REQUIRE_ANNOTATION_PREFIX}{key}",
                        key,
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
