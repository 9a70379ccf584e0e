"""Tree of queues, through which teams share a cluster: each has deserved amounts, a limit, a weight and a priority.

They come from the configuration and from Queue objects. An invalid queue stays in the tree with its problem: it accepts
no pods, and other queues are not affected. Only queues without children accept pods.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from session_scheduler.model.gpu_shares import GPU_FRACTION, GPU_MEMORY
from session_scheduler.model.groups import DEFAULT_QUEUE
from session_scheduler.model.meta import Quantity
from session_scheduler.model.quantity import QuantityError, quantity_text, thousandths, whole
from session_scheduler.model.queue_objects import Queue
from session_scheduler.model.requests import is_counted, unknown_resource

QUEUE_LABEL: Final = "fluence.flux-framework.org/queue"
"""On a PodGroup or a pod: the name of its queue."""
PODS: Final = "pods"
_IN_THOUSANDTHS: Final = frozenset({"cpu", GPU_FRACTION})
"""The resources that pods can request in fractions."""

DEVICES_SUFFIX: Final = ".fluence.flux-framework.org/devices"
"""Suffix of the name under which queues count a device resource of the configuration, in thousandths of a device."""
CAPACITY_SUFFIX: Final = ".fluence.flux-framework.org/capacity"
"""Suffix of that name for a device resource that sums up a capacity of devices, in the unit of the capacity."""

MOST_LEVELS: Final = 32
"""The maximum number of queues on a path to the top."""
_LONGEST_NAME: Final = 63
_NAME: Final = re.compile(r"[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?")
"""A valid label value."""

Amounts = dict[str, int]
"""By resource: cpu in millicores, parts of GPUs and device resources in thousandths, the rest in base units."""


class Problem(msgspec.Struct, frozen=True):
    """Why a queue accepts no pods: reason and message of its condition."""

    reason: str
    message: str
    at: str = ""
    """The invalid field."""


class QueueSpec(msgspec.Struct, frozen=True):
    """The settings of a queue. Resources without a deserved amount are not guaranteed; without a limit, unlimited."""

    name: str
    parent: str = ""
    deserved: Amounts = msgspec.field(default_factory=dict)
    limit: Amounts = msgspec.field(default_factory=dict)
    weight: int = 1
    """Its over-quota weight among its siblings of the same priority."""
    priority: int = 0
    problem: Problem | None = None
    """The first error in the settings."""


def is_in_thousandths(resource: str) -> bool:
    """Whether amounts of a resource are thousandths."""
    return resource in _IN_THOUSANDTHS or resource.endswith(DEVICES_SUFFIX)


def add_each(total: Amounts, amounts: Mapping[str, int], sign: int = 1) -> None:
    """Add amounts to a total, or subtract them; drop those that become 0."""
    for name, amount in amounts.items():
        total[name] = total.get(name, 0) + sign * amount
        if not total[name]:
            del total[name]


def amount_of(resource: str, quantity: Quantity) -> int:
    """A quantity in the units of pod requests: cpu in millicores. Raises QuantityError."""
    exact = thousandths(quantity)
    if exact < 0:
        raise QuantityError(f"{quantity!r} is negative; write 0 or more")
    return exact if is_in_thousandths(resource) else whole(exact)


def shown_amount(resource: str, amount: int) -> str:
    """An amount as a quantity: 1500 of cpu as 1500m, 2000 as 2, bytes with an exact suffix."""
    if is_in_thousandths(resource):
        return quantity_text(amount, milli=True)
    in_bytes = resource in ("memory", "ephemeral-storage", GPU_MEMORY)
    in_bytes = in_bytes or resource.startswith("hugepages-") or resource.endswith(CAPACITY_SUFFIX)
    return quantity_text(amount) if in_bytes else str(amount)


def shown_amounts(amounts: Mapping[str, int]) -> dict[str, Quantity]:
    """Amounts as quantities, sorted by name."""
    return {name: shown_amount(name, amounts[name]) for name in sorted(amounts)}


def queue_spec(
    name: str, parent: str, quantities: Mapping[str, Mapping[str, Quantity]], weight: int, priority: int
) -> QueueSpec:
    """The settings from quantities; `problem` is the first error in them."""
    amounts: dict[str, Amounts] = {"deserved": {}, "limit": {}}
    problem = _wrong_name(name)
    for which, named in quantities.items():
        for resource, quantity in named.items():
            at = f"{which}.{resource}"
            if resource != PODS and not is_counted(resource):
                problem = problem or Problem("Invalid", f"{at}: {unknown_resource(resource, PODS)}", at)
            try:
                amounts[which][resource] = amount_of(resource, quantity)
            except QuantityError as error:
                problem = problem or Problem("Invalid", f"{at}: {error}", at)
    deserved, limit = amounts["deserved"], amounts["limit"]
    if weight < 0:
        problem = problem or Problem("Invalid", f"overQuotaWeight: {weight} is negative; write 0 or more",
                                     "overQuotaWeight")  # fmt: skip
    for resource in sorted(limit.keys() & deserved.keys()):
        if deserved[resource] > limit[resource]:
            at = f"deserved.{resource}"
            text = (
                f"{at}: {shown_amount(resource, deserved[resource])} is more than the limit of "
                f"{shown_amount(resource, limit[resource])}; lower it, or raise the limit"
            )
            problem = problem or Problem("Invalid", text, at)
    return QueueSpec(name, parent, deserved, limit, max(0, weight), priority, problem)


def _wrong_name(name: str) -> Problem | None:
    """The error in a name that cannot be the value of the label by which pods name their queue."""
    if len(name) > _LONGEST_NAME:
        why = f"has {len(name)} characters; use at most {_LONGEST_NAME}, as in a label value"
    elif not _NAME.fullmatch(name):
        why = "is not a valid label value; use letters and digits, with '-', '_' and '.' between them"
    else:
        return None
    return Problem("Invalid", f"name: {why}", "name")


def with_known_devices(spec: QueueSpec, known: Container[str]) -> QueueSpec:
    """The settings with the first device resource that the configuration does not have as the problem."""
    if spec.problem is None:
        for which, amounts in (("deserved", spec.deserved), ("limit", spec.limit)):
            for name in sorted(amounts):
                if name.endswith((DEVICES_SUFFIX, CAPACITY_SUFFIX)) and name not in known:
                    at = f"{which}.{name}"
                    text = f"{at}: unknown device resource; add it to deviceResources in the scheduler's configuration"
                    return msgspec.structs.replace(spec, problem=Problem("Invalid", text, at))
    return spec


def of_object(queue: Queue) -> QueueSpec:
    """The settings of a Queue object."""
    spec = queue.spec
    return queue_spec(queue.metadata.name, spec.parent, {"deserved": spec.deserved, "limit": spec.limit},
                 spec.over_quota_weight, spec.priority)  # fmt: skip


class QueueTree:
    """The queues, each with its path to the top, or its problem. It always contains `default`. Immutable."""

    def __init__(self, specs: Iterable[QueueSpec] = ()) -> None:
        self.specs: dict[str, QueueSpec] = {spec.name: spec for spec in specs}
        self.specs.setdefault(DEFAULT_QUEUE, QueueSpec(DEFAULT_QUEUE))
        self._problems: dict[str, Problem] = {}
        self._paths: dict[str, tuple[str, ...]] = {}
        for name in sorted(self.specs):
            self._find_path(name)
        self.children: dict[str, list[str]] = {}
        """By parent ("" for the top): the usable queues, sorted by name."""
        for name in sorted(self._paths):
            self.children.setdefault(self.specs[name].parent, []).append(name)

    def _find_path(self, name: str) -> None:
        """Find the queue's path to the top, or its problem."""
        above: list[str] = []
        at = name
        while at:
            spec = self.specs.get(at)
            if spec is None:
                child = above[-1]
                text = f"parent: queue {at!r} does not exist; create it, or choose another parent"
                problem = Problem("ParentMissing", text, "parent")
                self._fail(name, child, problem)
                return
            if at in above:
                if at == name:
                    steps = " -> ".join([*above, name])
                    text = f"parent: the queues form a cycle ({steps}); give one of them another parent"
                    self._fail(name, name, Problem("Circle", text, "parent"))
                else:
                    self._fail(name, at, Problem("Circle", ""))
                return
            if spec.problem is not None:
                self._fail(name, at, spec.problem)
                return
            if above and at == DEFAULT_QUEUE:
                text = (
                    "parent: queue 'default' is for pods that name no queue, so it cannot have children; "
                    "choose another parent"
                )
                self._fail(name, above[-1], Problem("ParentNotAllowed", text, "parent"))
                return
            above.append(at)
            at = spec.parent
            if at and len(above) == MOST_LEVELS:
                text = f"parent: more than {MOST_LEVELS - 1} ancestors; choose a parent nearer to the top"
                self._fail(name, name, Problem("TooDeep", text, "parent"))
                return
        self._paths[name] = tuple(above)

    def _fail(self, name: str, culprit: str, problem: Problem) -> None:
        if culprit != name:
            text = f"parent: ancestor {culprit!r} is not ready; see its status"
            problem = Problem("ParentNotReady", text, "parent")
        self._problems[name] = problem

    def __iter__(self) -> Iterator[str]:
        """All names, sorted."""
        return iter(sorted(self.specs))

    def problem(self, name: str) -> Problem | None:
        """Why an existing queue is not usable; None if it is."""
        return self._problems.get(name)

    def path(self, name: str) -> tuple[str, ...]:
        """The queue and its ancestors, up to the top; only the name if the queue is not usable or does not exist."""
        return self._paths.get(name, (name,))

    def usable(self, name: str) -> bool:
        """Whether the queue exists and is valid."""
        return name in self._paths

    @staticmethod
    def missing(name: str) -> Problem:
        """The problem of a queue that pods name, but that does not exist."""
        return Problem("Missing", f"queue {name!r} does not exist; create it; until then its pending pods wait")

    def why_not(self, name: str) -> str | None:
        """Why the queue accepts no pods; None if it does."""
        if name not in self.specs:
            return f"queue {name!r} does not exist; create it, or set the label {QUEUE_LABEL} to another queue"
        problem = self._problems.get(name)
        if problem is not None:
            return f"queue {name!r} is not ready: {problem.message}"
        if name in self.children:
            named = ", ".join(self.children[name][:5])
            return f"queue {name!r} accepts no pods because it has child queues; use one of them, such as {named}"
        return None
