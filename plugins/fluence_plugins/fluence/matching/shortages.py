"""The messages of refusals: amounts in Kubernetes' units, and devices by type, attributes and resource tree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from fluence_plugins.fluence.errors import DeviceError
from fluence_plugins.fluence.graph.accounting import CORE_MILLICORES, Accounting, PodShape, mib_of
from fluence_plugins.fluence.graph.cluster_graph import CORE, MEMORY, POD, VirtualNode
from fluence_plugins.fluence.graph.live_graph import LiveGraph
from fluence_plugins.fluence.matching.jobspecs import down_devices, in_words, matching_devices
from fluence_plugins.fluence.matching.pod_requests import PodRequests
from fluence_plugins.resources import names
from fluxion_cy.wording import Words, in_mib, plural


class PodWords(Words):
    """The words for one class of pods: the shape of a pod, and its `requests` in millicores, bytes and counts."""

    slot = "pod"
    filters = "other filters"
    graph = "the cluster"
    whole_nodes = "matchPolicy allocates whole nodes"

    def __init__(
        self, accounting: Accounting, shape: PodShape, requests: Mapping[str, int], *, names_excluded: bool = True
    ) -> None:
        self.names_excluded = names_excluded
        self._accounting = accounting
        self._shape = shape
        self._cpu = requests.get("cpu", 0)
        self._memory = mib_of(requests.get("memory", 0))
        self._gpus = {kind: name for name, kind in accounting.gpu_types.items()}

    def name(self, kind: str, unit: str = "") -> str:  # noqa: ARG002 - the accounting knows the unit
        """The users' name: `cores`, `cpu`, `memory`, `pod slots`, or the gpus' resource."""
        if kind == CORE:
            return "cpu" if self._in_millicores(self._shape.cores) else "cores"
        return {MEMORY: "memory", POD: "pod slots"}.get(kind) or self._gpus.get(kind, kind)

    def amount(self, kind: str, number: int, unit: str = "", *, free: bool = False) -> str:  # noqa: ARG002 - as in `name`
        """`2 free cores`, `250m of free cpu`, `4 GiB of free memory`, `1 free nvidia.com/gpu`."""
        adjective, name = "free " * free, self.name(kind)
        if kind == MEMORY or name == "cpu":
            return f"{self.number(kind, number, number)} of {adjective}{name}"
        text = self.number(kind, number, number)
        return f"{text} {adjective}{name.removesuffix('s') if text == '1' and kind in (CORE, POD) else name}"

    def note(self, kind: str) -> str:
        """The text about a request that is rounded up; empty if it is not."""
        cores = self._shape.cores
        if self._accounting.millicores:
            cores //= CORE_MILLICORES
        if kind == CORE and self._cpu < cores * CORE_MILLICORES:
            asks = f"a request of {self._cpu}m" if self._cpu else "a pod without a CPU request"
            accounting = f"cpuAccounting: {self._accounting.cpu}"
            return f" ({asks} counts as {cores} whole core{'s' * (cores > 1)} with {accounting})"
        if kind == MEMORY and self._memory != self._shape.memory_mib:
            return f" (a request of {in_mib(self._memory)} takes {in_mib(self._shape.memory_mib)})"
        return ""

    def number(self, kind: str, number: int, need: int, unit: str = "") -> str:  # noqa: ARG002 - as in `name`
        """The number with its unit: cores if the request is a multiple of a core, else millicores."""
        if kind == MEMORY:
            return in_mib(number)
        if kind != CORE or not self._accounting.millicores:
            return str(number)
        if self._in_millicores(self._shape.cores):
            return f"{number}m"
        return f"{number // CORE_MILLICORES}.{number % CORE_MILLICORES:03}".rstrip("0").rstrip(".")

    def _in_millicores(self, cores: int) -> bool:
        return self._accounting.millicores and cores % CORE_MILLICORES > 0


class DeviceShortage(msgspec.Struct, frozen=True):
    """The shortage of one type of devices, for equal pods."""

    live: LiveGraph
    requests: PodRequests
    kind: str
    require: Mapping[str, str]
    is_open: Callable[[VirtualNode], bool]
    """Whether no maintenance window closes a device."""

    def reason(self, pods: int, before: Collection[str], taken: Collection[str]) -> str:
        """The text for a refusal.

        `before`: the devices (paths) of the group's other pods. `taken`: these and those of the pods that fit.
        """
        try:
            devices = matching_devices(self.live.graph, self.kind, self.require, self.requests.backend)
        except DeviceError as error:
            return str(error)
        each = self.requests.devices[self.kind]
        free = [device for device in devices if device.path not in before and self._is_free(device)]
        if len(free) < each * pods:
            subject = "the pod requests" if pods == 1 else f"{pods} pods request"
            return f"{subject} {self._named(each * pods)}, and {self._count(len(free), devices)}"
        left = [device for device in free if device.path not in taken]
        total = _by_tree(devices)
        small = sum(number < each for number in total.values())
        has = f"{small} of {len(total)} resource trees {'has' if small == 1 else 'have'} fewer than {each}"
        if small == len(total):
            has = f"no resource tree has {each}"
        most = max(_by_tree(left).values(), default=0)
        return (
            f"no resource tree has {self._named(each, 'free ')}{' left' * bool(set(taken) - set(before))} that one pod "
            f"can use at the same time; {self._count(len(left), devices)}, "
            f"at most {most} in one resource tree{f' ({has})' if small else ''}"
        )

    def _is_free(self, device: VirtualNode) -> bool:
        return self.is_open(device) and self.live.is_free(device)

    def _named(self, number: int, adjective: str = "") -> str:
        noun = self.kind if number == 1 else plural(self.kind)
        return f"{number} {adjective}{noun}{in_words(self.require, self.requests.backend)}"

    def _count(self, free: int, devices: Collection[VirtualNode]) -> str:
        down = len(down_devices(self.live.graph, self.kind, self.require, self.requests.backend))
        besides = f" ({down} more {'is' if down == 1 else 'are'} down in the resources file)" if down else ""
        places = " places" if any(device.is_place for device in devices) else ""
        return f"{free} of {len(devices)}{places} {'is' if len(devices) == 1 else 'are'} free{besides}"


def _by_tree(devices: Iterable[VirtualNode]) -> Counter[str]:
    """The number of devices in each resource tree, as one pod can get them: a shared device counts once."""
    return Counter(tree for tree, _ in {(_tree(device), names.without_places(device.path)) for device in devices})


def _tree(device: VirtualNode) -> str:
    return device.backend if device.level else str(device.entry)
