"""Queues: what teams share a cluster by. A tree in which each has what it deserves, a limit, a weight and a priority.

They come from the configuration and as Queue objects. One that cannot be used is kept with the reason why: it takes no
pods, and nothing else suffers for it. Only queues without children take pods.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from session_scheduler.model.gpu_shares import GPU_FRACTION, GPU_MEMORY
from session_scheduler.model.groups import DEFAULT_QUEUE
from session_scheduler.model.meta import Quantity
from session_scheduler.model.quantity import QuantityError, quantity_text, thousandths, whole
from session_scheduler.model.queue_objects import Queue

QUEUE_LABEL: Final = "fluence.flux-framework.org/queue"
"""On a PodGroup or a pod: the name of its queue."""
PODS: Final = "pods"
IN_THOUSANDTHS: Final = frozenset({"cpu", GPU_FRACTION})
"""The resources of which less than one can be had."""

MOST_LEVELS: Final = 32
"""How many queues a path to the top has at most."""
_LONGEST_NAME: Final = 63
_NAME: Final = re.compile(r"[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?")
"""What the value of a label can be."""

Amounts = dict[str, int]
"""By resource: cpu in millicores, parts of GPUs in thousandths, the rest in base units."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a queue takes no pods: a condition's reason, and a sentence."""

    reason: str
    message: str
    at: str = ""
    """The wrong field."""


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """One queue as it is wanted. What `deserved` does not name is not guaranteed, what `limit` does not is free."""

    name: str
    parent: str = ""
    deserved: Amounts = field(default_factory=dict)
    limit: Amounts = field(default_factory=dict)
    weight: int = 1
    """Its part of what no queue deserves, against those beside it of the same priority."""
    priority: int = 0
    problem: Problem | None = None
    """What is wrong with the queue itself."""


def amount_of(resource: str, quantity: Quantity) -> int:
    """A quantity as pods' requests count it: cpu in millicores. Raises QuantityError."""
    exact = thousandths(quantity)
    if exact < 0:
        raise QuantityError(f"{quantity!r} is negative: write 0 or more")
    return exact if resource in IN_THOUSANDTHS else whole(exact)


def shown_amount(resource: str, amount: int) -> str:
    """An amount as people write it: 1500 of cpu is 1500m, whole ones are plain; bytes get a suffix that is exact."""
    if resource in IN_THOUSANDTHS:
        return quantity_text(amount, milli=True)
    in_bytes = resource in ("memory", "ephemeral-storage", GPU_MEMORY) or resource.startswith("hugepages-")
    return quantity_text(amount) if in_bytes else str(amount)


def shown_amounts(amounts: Mapping[str, int]) -> dict[str, Quantity]:
    """Amounts as people write them, in order of name."""
    return {name: shown_amount(name, amounts[name]) for name in sorted(amounts)}


def queue_spec(
    name: str, parent: str, quantities: Mapping[str, Mapping[str, Quantity]], weight: int, priority: int
) -> QueueSpec:
    """A queue of what is written; its `problem` is the first thing that is wrong with it."""
    amounts: dict[str, Amounts] = {"deserved": {}, "limit": {}}
    problem = _wrong_name(name)
    for which, named in quantities.items():
        for resource, quantity in named.items():
            try:
                amounts[which][resource] = amount_of(resource, quantity)
            except QuantityError as error:
                at = f"{which}.{resource}"
                problem = problem or Problem("Invalid", f"{at}: {error}", at)
    deserved, limit = amounts["deserved"], amounts["limit"]
    if weight < 0:
        problem = problem or Problem("Invalid", f"overQuotaWeight: {weight} is negative: write 0 or more",
                                     "overQuotaWeight")  # fmt: skip
    for resource in sorted(limit.keys() & deserved.keys()):
        if deserved[resource] > limit[resource]:
            at = f"deserved.{resource}"
            text = (
                f"{at}: {shown_amount(resource, deserved[resource])} is more than the limit of "
                f"{shown_amount(resource, limit[resource])}: lower it, or raise the limit"
            )
            problem = problem or Problem("Invalid", text, at)
    return QueueSpec(name, parent, deserved, limit, max(0, weight), priority, problem)


def _wrong_name(name: str) -> Problem | None:
    """Why no pod could name the queue by its label."""
    if len(name) > _LONGEST_NAME:
        why = f"has {len(name)} characters, and a label, by which pods name it, at most {_LONGEST_NAME}: shorten it"
    elif not _NAME.fullmatch(name):
        why = "is no value of a label, by which pods name it: use letters, digits, '-', '_' and '.' between such"
    else:
        return None
    return Problem("Invalid", f"name: {why}", "name")


def of_object(queue: Queue) -> QueueSpec:
    """The queue that an object describes."""
    spec = queue.spec
    return queue_spec(queue.metadata.name, spec.parent, {"deserved": spec.deserved, "limit": spec.limit},
                 spec.over_quota_weight, spec.priority)  # fmt: skip


class QueueTree:
    """Some queues, each with its place or the reason why it has none. `default` is always there. A value."""

    def __init__(self, specs: Iterable[QueueSpec] = ()) -> None:
        self.specs: dict[str, QueueSpec] = {spec.name: spec for spec in specs}
        self.specs.setdefault(DEFAULT_QUEUE, QueueSpec(DEFAULT_QUEUE))
        self._problems: dict[str, Problem] = {}
        self._paths: dict[str, tuple[str, ...]] = {}
        for name in sorted(self.specs):
            self._find_path(name)
        self.children: dict[str, list[str]] = {}
        """By parent ("" for the top), in order of name: the queues that can be used."""
        for name in sorted(self._paths):
            self.children.setdefault(self.specs[name].parent, []).append(name)

    def _find_path(self, name: str) -> None:
        """Find the queue's path to the top, or why there is none."""
        above: list[str] = []
        at = name
        while at:
            spec = self.specs.get(at)
            if spec is None:
                child = above[-1]
                problem = Problem("ParentMissing", f"parent: there is no queue {at!r}: create it, or name another",
                                  "parent")  # fmt: skip
                self._fail(name, child, problem)
                return
            if at in above:
                if at == name:
                    steps = " -> ".join([*above, name])
                    text = f"parent: the queues make a circle ({steps}): give one of them another parent"
                    self._fail(name, name, Problem("Circle", text, "parent"))
                else:
                    self._fail(name, at, Problem("Circle", ""))
                return
            if spec.problem is not None:
                self._fail(name, at, spec.problem)
                return
            if above and at == DEFAULT_QUEUE:
                text = "parent: pods that name no queue go to 'default', so it can have no children: name another"
                self._fail(name, above[-1], Problem("ParentNotAllowed", text, "parent"))
                return
            above.append(at)
            at = spec.parent
            if at and len(above) == MOST_LEVELS:
                text = f"parent: more than {MOST_LEVELS - 1} queues are above it: give it one that is nearer to the top"
                self._fail(name, name, Problem("TooDeep", text, "parent"))
                return
        self._paths[name] = tuple(above)

    def _fail(self, name: str, culprit: str, problem: Problem) -> None:
        if culprit != name:
            text = f"parent: queue {culprit!r}, which is above it, takes no pods itself: look at its status"
            problem = Problem("ParentNotReady", text, "parent")
        self._problems[name] = problem

    def __iter__(self) -> Iterator[str]:
        """All names, in order."""
        return iter(sorted(self.specs))

    def problem(self, name: str) -> Problem | None:
        """Why a queue that is there cannot be used."""
        return self._problems.get(name)

    def path(self, name: str) -> tuple[str, ...]:
        """The queue and those above it, up to the top; the name alone for one that cannot be used, or is not there."""
        return self._paths.get(name, (name,))

    def usable(self, name: str) -> bool:
        """Whether the queue is there and has its place."""
        return name in self._paths

    @staticmethod
    def missing(name: str) -> Problem:
        """What is wrong with a queue that only pods name."""
        text = f"there is no queue {name!r}, or no more: create it; what its pods have counts in no other queue"
        return Problem("Missing", text)

    def why_not(self, name: str) -> str | None:
        """Why no pod can be in the queue; None where some can."""
        if name not in self.specs:
            return f"queue {name!r} does not exist: create it, or name another by the label {QUEUE_LABEL}"
        problem = self._problems.get(name)
        if problem is not None:
            return f"queue {name!r} takes no pods: {problem.message}"
        if name in self.children:
            named = ", ".join(self.children[name][:5])
            return f"queue {name!r} takes no pods, for it has others below it: name one of them ({named}, say)"
        return None
