"""Builds ClusterQueues from the offers of pools and local flavors: a main queue with quotas, and borrowing branches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from fluence_plugins.master_queue.amounts import RESOURCES, amount_text, amounts
from fluence_plugins.master_queue.api.kueue import (
    ClusterQueue,
    ClusterQueueSpec,
    FlavorQuotas,
    ResourceGroup,
    ResourceQuota,
)
from fluence_plugins.master_queue.api.master_queue import Flavor, MasterQueue
from fluence_plugins.master_queue.controller.validation import fungibility
from session_scheduler.model.meta import ObjectMeta, Quantity


class Offer(msgspec.Struct, frozen=True):
    """A ResourceFlavor with its quotas, and with each branch's borrowing limits, in thousandths."""

    flavor: str
    quotas: dict[str, int]
    lent: dict[str, dict[str, int]]


def empty_flavor(master: str) -> str:
    """The flavor of queues without any quota; its name differs from those of all pools' flavors."""
    return f"{master}-empty"


def local_offer(flavor: Flavor) -> Offer:
    """The offer of a local flavor: its nominal quota."""
    return Offer(flavor.name, amounts(flavor.nominal_quota), _lent(flavor))


def pool_offer(name: str, flavor: Flavor, published: Mapping[str, Quantity]) -> Offer:
    """The offer of a pool: for each resource the smaller of the published and the nominal quota.

    A published resource without a nominal quota is offered as published; a resource that is not published is offered
    with 0.
    """
    has, nominal = amounts(dict(published)), amounts(flavor.nominal_quota)
    quotas: dict[str, int] = {
        resource: min(has.get(resource, 0), nominal.get(resource, has.get(resource, 0)))
        for resource in RESOURCES
        if resource in has or resource in nominal
    }
    return Offer(name, quotas, _lent(flavor))


def _lent(flavor: Flavor) -> dict[str, dict[str, int]]:
    return {lend.queue: amounts(lend.lending_limit) for lend in flavor.can_lend_to}


class QueueMaker:
    """Builds a MasterQueue's ClusterQueues."""

    def __init__(self, master: MasterQueue) -> None:
        self._master = master
        self.empty = empty_flavor(master.key)
        self.used_empty = False

    def main(self, offers: Sequence[Offer]) -> ClusterQueue:
        """The main queue, which has the MasterQueue's name."""
        resources = _covered(one.quotas for one in offers)
        flavors = [_quotas(one.flavor, resources, one.quotas) for one in offers]
        return self._queue(self._master.key, resources, flavors)

    def branch(self, name: str, offers: Sequence[Offer]) -> ClusterQueue:
        """A branch queue: it has no quota of its own, and borrows from each pool up to that pool's limit for it.

        It covers the resources of all its limits. If a limit does not name one of them, the branch cannot borrow that
        resource from that pool.
        """
        lending = [one for one in offers if name in one.lent]
        resources = _covered(one.lent[name] for one in lending)
        flavors = [_quotas(one.flavor, resources, {}, one.lent[name]) for one in lending]
        return self._queue(name, resources, flavors)

    def _queue(self, name: str, resources: tuple[str, ...], flavors: Sequence[FlavorQuotas]) -> ClusterQueue:
        template = self._master.spec.template
        stop = template.stop_policy
        if not resources or not flavors:
            self.used_empty = True
            resources, flavors = RESOURCES, [_quotas(self.empty, RESOURCES, {})]
            stop = "HoldAndDrain" if stop == "HoldAndDrain" else "Hold"
        spec = ClusterQueueSpec(
            cohort_name=template.cohort,
            queueing_strategy=template.queueing_strategy,
            stop_policy=stop,
            namespace_selector=template.namespace_selector,
            resource_groups=(ResourceGroup(covered_resources=resources, flavors=tuple(flavors)),),
            flavor_fungibility=None
            if template.flavor_fungibility is None
            else fungibility(template.flavor_fungibility),
            preemption=template.preemption,
        )
        return ClusterQueue(metadata=ObjectMeta(name=name, owner_references=(self._master.owner,)), spec=spec)


def _covered(quotas: Iterable[Mapping[str, int]]) -> tuple[str, ...]:
    named = {resource for one in quotas for resource in one}
    return tuple(resource for resource in RESOURCES if resource in named)


def _quotas(
    flavor: str, resources: Sequence[str], nominal: Mapping[str, int], limits: Mapping[str, int] | None = None
) -> FlavorQuotas:
    quotas = (
        ResourceQuota(
            name=resource,
            nominal_quota=amount_text(resource, nominal.get(resource, 0)),
            borrowing_limit=None if limits is None else amount_text(resource, limits.get(resource, 0)),
        )
        for resource in resources
    )
    return FlavorQuotas(name=flavor, resources=tuple(quotas))
