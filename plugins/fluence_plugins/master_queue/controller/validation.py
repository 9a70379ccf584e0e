"""Validates a MasterQueue's spec: rules that the API server cannot check, and rules that an older definition lacked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from fluence_plugins.master_queue import patterns
from fluence_plugins.master_queue.amounts import RESOURCES, amount
from fluence_plugins.master_queue.api.kueue import MOST_FLAVORS, QUEUEING_STRATEGIES, STOP_POLICIES
from fluence_plugins.master_queue.api.master_queue import Flavor, LendTo, MasterQueueSpec, NatsFlavor, Template
from fluence_plugins.master_queue.errors import PatternError
from fluence_plugins.master_queue.names import is_dns_label, is_dns_subdomain, is_label_value, is_subject
from session_scheduler.errors import shown
from session_scheduler.model.meta import Quantity
from session_scheduler.model.quantity import QuantityError

LONGEST_TIMEOUT: Final = 7 * 24 * 3600
_ALIKE: Final = {"Borrow": "MayStopSearch", "Preempt": "MayStopSearch"}
_LABEL_RULE: Final = "use at most 63 characters (a-z, 0-9 and -), with no - at the start or end"
_NAME_RULE: Final = "use at most 253 characters (a-z, 0-9, - and .), with a letter or digit at the start and end"


def problems(spec: MasterQueueSpec, name: str = "") -> tuple[str, ...]:
    """A line for each problem, with its field and a remedy. `name` is the MasterQueue's."""
    return tuple(f"spec.{line}" for line in _problems(spec, name))


def _problems(spec: MasterQueueSpec, name: str) -> Iterator[str]:
    yield from _template(spec.template)
    if not spec.flavors:
        yield "flavors: is empty; add at least one natsFlavor or localFlavor"
    if len(spec.flavors) > MOST_FLAVORS:
        yield f"flavors: expected at most {MOST_FLAVORS}, Kueue's limit for a queue, got {len(spec.flavors)}"
    names: set[str] = set()
    pools: dict[str, str] = {}
    for index, flavor in enumerate(spec.flavors[:MOST_FLAVORS]):
        field = f"flavors[{index}]"
        if flavor.name in names:
            yield f"{field}.name: {shown(flavor.name)} is used twice; give each flavor its own name"
        names.add(flavor.name)
        for line in _flavor(flavor, name):
            yield f"{field}.{line}"
        yield from _shared_pools(field, flavor, pools)


def _template(template: Template) -> Iterator[str]:
    if not is_dns_subdomain(template.cohort):
        yield f"template.cohort: {shown(template.cohort)} is not a valid cohort name; {_NAME_RULE}"
    if template.stop_policy not in STOP_POLICIES:
        yield f"template.stopPolicy: {shown(template.stop_policy)} is unknown; use one of {', '.join(STOP_POLICIES)}"
    if template.queueing_strategy not in QUEUEING_STRATEGIES:
        yield (
            f"template.queueingStrategy: {shown(template.queueing_strategy)} is unknown;"
            f" use one of {', '.join(QUEUEING_STRATEGIES)}"
        )
    known = ("MayStopSearch", "TryNextFlavor", *_ALIKE)
    for field in ("whenCanBorrow", "whenCanPreempt"):
        value = (template.flavor_fungibility or {}).get(field, "TryNextFlavor")
        if value not in known:
            yield f"template.flavorFungibility.{field}: {shown(value)} is unknown; use MayStopSearch or TryNextFlavor"


def _flavor(flavor: Flavor, name: str) -> Iterator[str]:
    local = flavor.local_flavor is not None
    if (flavor.nats_flavor is not None) == local:
        yield f"natsFlavor, localFlavor: {'both are' if local else 'neither is'} set; set exactly one of them"
    if not (is_dns_subdomain if local else is_dns_label)(flavor.name):
        yield f"name: {shown(flavor.name)} is not a valid flavor name; {_NAME_RULE if local else _LABEL_RULE}"
    if flavor.nats_flavor is not None:
        for line in _nats(flavor.nats_flavor):
            yield f"natsFlavor.{line}"
    yield from _quotas("nominalQuota", flavor.nominal_quota)
    queues: set[str] = set()
    for index, lend in enumerate(flavor.can_lend_to):
        yield from _lending(f"canLendTo[{index}]", lend, name, queues)


def _nats(nats: NatsFlavor) -> Iterator[str]:
    if (nats.pools is None) == (nats.pool_reg_exp is None):
        found = "neither is set" if nats.pools is None else "both are set"
        yield f"pools, poolRegExp: {found}; set exactly one of them"
    if nats.pools is not None and not nats.pools:
        yield "pools: is empty; name at least one pool, or set poolRegExp instead"
    for index, pool in enumerate(nats.pools or ()):
        if not is_dns_label(pool):
            yield f"pools[{index}]: {shown(pool)} is not a valid pool name; {_LABEL_RULE}"
    if nats.pool_reg_exp is not None:
        try:
            patterns.check(nats.pool_reg_exp)
        except PatternError as error:
            yield f"poolRegExp: {error}"
    if not nats.nats_connector:
        yield "natsConnector: is empty; write the server's address, such as nats://nats.nats:4222"
    if not is_subject(nats.nats_subject):
        what = "write words separated by ., without * and >"
        yield f"natsSubject: {shown(nats.nats_subject)} is not a valid subject; {what}"
    if not nats.virtual_node or not is_label_value(nats.virtual_node):
        yield f"virtualNode: {shown(nats.virtual_node)} is not a valid host name; write the value of the node's label"
    if not 1 <= nats.pool_timeout <= LONGEST_TIMEOUT:
        yield f"poolTimeout: {nats.pool_timeout} is out of range; write a number of seconds from 1 to {LONGEST_TIMEOUT}"


def _quotas(field: str, quotas: Mapping[str, Quantity]) -> Iterator[str]:
    for resource, value in sorted(quotas.items()):
        if resource not in RESOURCES:
            yield f"{field}[{shown(resource)}]: unknown resource; use one of {', '.join(RESOURCES)}"
            continue
        try:
            amount(resource, value)
        except QuantityError as error:
            yield f"{field}[{resource!r}]: {error}"


def _lending(field: str, lend: LendTo, name: str, queues: set[str]) -> Iterator[str]:
    if not is_dns_subdomain(lend.queue):
        yield f"{field}.queue: {shown(lend.queue)} is not a valid queue name; {_NAME_RULE}"
    elif lend.queue == name:
        yield f"{field}.queue: {shown(lend.queue)} is the main queue itself; name another queue"
    elif lend.queue in queues:
        yield f"{field}.queue: {shown(lend.queue)} is used twice; write all its limits into one entry"
    queues.add(lend.queue)
    yield from _quotas(f"{field}.lendingLimit", lend.lending_limit)


def _shared_pools(field: str, flavor: Flavor, pools: dict[str, str]) -> Iterator[str]:
    for index, pool in enumerate((flavor.nats_flavor.pools if flavor.nats_flavor is not None else None) or ()):
        where = f"{field}.natsFlavor.pools[{index}]"
        if pool in pools:
            yield f"{where}: {shown(pool)} is also in {pools[pool]}; name each pool once"
        pools.setdefault(pool, f"spec.{where}")


def fungibility(values: dict[str, object]) -> dict[str, object]:
    """A flavorFungibility with the values of v1beta1 replaced by those of v1beta2."""
    return {field: _ALIKE.get(value, value) if isinstance(value, str) else value for field, value in values.items()}
