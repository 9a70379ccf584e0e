"""Maps Slurm's device indices on a node to the devices that DRA drivers publish in ResourceSlices.

Source: slurm-bridge 1.2.1, internal/nodeinfo, for the index of a device and the order of cores. slurm-bridge supports
the classes of three drivers, by name; this module supports any class, through the class's selectors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from fluence_plugins.slurm_bridge.slurm import gres
from session_scheduler.errors import AttemptError
from session_scheduler.model.cel.errors import CompileError, EvaluationError
from session_scheduler.model.cel.program import Program
from session_scheduler.model.device_variable import FIELDS, device_variable
from session_scheduler.model.devices import Device, DeviceClass, ResourceSlice

CPU_CLASS: Final = "dra.cpu"
"""The class, and the driver, of devices that are CPUs: Slurm allocates cores for it."""
_NAMED_BY_INDEX: Final = {"gpu.nvidia.com": re.compile(r"gpu-([0-9]{1,9})")}
"""Drivers that show a device's index in its name only; devices with other names (partitions of GPUs) have no index."""
_TRAILING: Final = re.compile(r"([0-9]{1,9})$")
_EFFICIENCY: Final = (3, "e-core")
"""Values of `coreType` of the cores that Slurm does not count."""

DeviceId = tuple[str, str, str]
"""Driver, pool and name."""


@dataclass(frozen=True, slots=True)
class NodeDevice:
    """A device of a node."""

    driver: str
    pool: str
    device: Device

    @property
    def id(self) -> DeviceId:
        """How a claim identifies the device."""
        return self.driver, self.pool, self.device.name

    def attribute(self, name: str) -> int | str | None:
        """A number or text among the driver's attributes of the device."""
        found = self.device.attributes.get(f"{self.driver}/{name}") or self.device.attributes.get(name)
        value = found.value if found is not None else None
        return value[1] if value is not None else None

    def number(self, name: str) -> int | None:
        """A number among the driver's attributes of the device."""
        value = self.attribute(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    @property
    def index(self) -> int | None:
        """The device's index in Slurm; None if it has none.

        If the driver has a rule of its own, that rule applies; else the attribute `index`; else the number at the end
        of the name.
        """
        rule = _NAMED_BY_INDEX.get(self.driver)
        if rule is None and (number := self.number("index")) is not None:
            return number
        match = rule.fullmatch(self.device.name) if rule is not None else _TRAILING.search(self.device.name)
        return int(match[1]) if match is not None else None


def devices_on(slices: Iterable[ResourceSlice], node: str) -> list[NodeDevice]:
    """The node's devices, from the newest generation of each pool."""
    every = list(slices)
    newest: dict[tuple[str, str], int] = {}
    for part in every:
        pool = (part.spec.driver, part.spec.pool.name)
        newest[pool] = max(newest.get(pool, 0), part.spec.pool.generation)
    return [
        NodeDevice(part.spec.driver, part.spec.pool.name, device)
        for part in sorted(every, key=lambda part: part.metadata.name)
        if part.spec.pool.generation == newest[part.spec.driver, part.spec.pool.name]
        for device in part.spec.devices
        if node == (device.node_name if part.spec.per_device_node_selection else part.spec.node_name)
    ]


def devices_of(cls: DeviceClass, devices: Sequence[NodeDevice]) -> list[NodeDevice]:
    """The devices that match the class's selectors. If the node has devices of a driver with the class's name, only
    those.

    Raises AttemptError if a selector is invalid.
    """
    name = cls.metadata.name
    found = [one for one in devices if one.driver == name] or list(devices)
    for number, selector in enumerate(cls.spec.selectors):
        try:
            program = Program(selector.cel.expression if selector.cel is not None else "", ("device",), FIELDS)
            found = [one for one in found if _holds(program, one)]
        except (CompileError, EvaluationError) as error:
            what = "compile" if isinstance(error, CompileError) else "runtime"
            text = f"DeviceClass {name}: selector #{number}: CEL {what} error: {error}"
            raise AttemptError(f"{' '.join(text.split())}; correct the class") from None
    return found


def _holds(program: Program, one: NodeDevice) -> bool:
    answer, _ = program.evaluate({"device": device_variable(one.device, one.driver)})
    if isinstance(answer, EvaluationError):
        raise answer
    return answer


def by_index(devices: Iterable[NodeDevice]) -> dict[int, list[NodeDevice]]:
    """The devices by their index in Slurm. An index with several devices is ambiguous."""
    found: dict[int, list[NodeDevice]] = {}
    for one in devices:
        if (index := one.index) is not None:
            found.setdefault(index, []).append(one)
    return found


def by_core(devices: Iterable[NodeDevice]) -> dict[int, list[NodeDevice]]:
    """The CPUs by the index of their core in Slurm, which counts the cores of all sockets and omits
    efficiency cores.
    """
    cores: dict[tuple[int, int], list[tuple[int, NodeDevice]]] = {}
    for one in devices:
        cpu, core, socket = (one.number(name) for name in ("cpuID", "coreID", "socketID"))
        if cpu is None or core is None or socket is None or one.attribute("coreType") in _EFFICIENCY:
            continue
        cores.setdefault((socket, core), []).append((cpu, one))
    return {
        index: [one for _, one in sorted(cores[place], key=lambda entry: entry[0])]
        for index, place in enumerate(sorted(cores))
    }


def before(node_gres: str, name: str, kind: str) -> int:
    """How many devices of a GRES precede those of a type on a node: Slurm's indices run through all types of a name.

    Source: slurmctld 26.05, `gres` of a node and `index` of `/resources`.
    """
    try:
        listed = [one for one in gres.parse(re.sub(r"\([^)]*\)", "", node_gres)) if one.name == name]
    except ValueError:  # none, or both with and without a type: there is nothing to distinguish
        return 0
    types = [one.type for one in listed]
    earlier = listed[: types.index(kind)] if kind in types else []
    return sum(int(one.count) for one in earlier if one.count.isdecimal())
