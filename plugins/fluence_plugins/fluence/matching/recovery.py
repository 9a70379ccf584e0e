"""Recovers the resources that live pods recorded, at startup and when their nodes come back.

It converts records that count CPU differently from the current configuration, and leaves out what a pod no longer
requests after an in-place resize.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from fluence_plugins.fluence.graph.accounting import CORE_MILLICORES, MOST_PARTS, PodShape, cores_of
from fluence_plugins.fluence.graph.holdings import Share, within
from fluence_plugins.fluence.graph.live_graph import LiveGraph
from fluence_plugins.fluence.graph.placement import HostHolding, Placement
from fluence_plugins.fluence.graph.records import from_json
from fluence_plugins.fluence.matching.node_loads import NodeLoads
from fluence_plugins.fluence.matching.pod_requests import RequestsByClass
from session_scheduler.sdk.bindings import Holding


def recover_holdings(holdings: Sequence[Holding], live: LiveGraph, loads: NodeLoads) -> dict[str, str]:
    """Hold what these pods recorded. The rest counts as foreign load; returns the reasons, by pod uid.

    For foreign pods it holds only what is on their node: another scheduler allocates devices outside of nodes.
    """
    shares = {}
    lost: dict[str, str] = {}
    by_class = RequestsByClass(live.accounting)
    for holding in holdings:
        requests = holding.task.cls.requests
        share = from_json(holding.held, holding.node, live, requests) if holding.held is not None else None
        if share is not None:
            shares[holding.task.uid] = _on_node(share, holding.node, live) if holding.foreign else share
        asked = by_class[holding.task.cls].devices
        if asked and not any(part.devices for part in (share or {}).values()):
            wanted = ", ".join(f"{count} {kind}" for kind, count in sorted(asked.items()))
            lost[holding.task.uid] = (
                f"the pod requests {wanted}, but no record shows which devices it has; other pods may get the same ones"
            )
        elif share is None and holding.held is not None:
            lost[holding.task.uid] = "the record of the pod's resources is invalid"
    before = set(live.holdings.missing)
    concerned = {holding.node for holding in holdings} & loads.tasks_on.keys()
    for name in concerned:
        live.foreign.drop(name)
    fresh = {uid: share for uid, share in shares.items() if uid not in live.holdings.shares}
    shapes = {holding.task.uid: by_class[holding.task.cls].shape for holding in holdings}
    counted = _as_counted(fresh, shapes, live)
    live.allocations.replay({uid: within(share, shapes[uid], live.accounting) for uid, share in counted.items()})
    loads.graph_changed(before)
    missing = live.holdings.missing
    why = "resources that the pod holds are missing from the graph, or another pod holds them"
    lost |= dict.fromkeys(missing.keys() & shares, why)
    for name in sorted(concerned):
        loads.count(name)
    return lost


def _on_node(share: Share, node: str, live: LiveGraph) -> Share:
    """The hosts of a share, and its devices below this node."""
    below = f"{live.graph.root.path}/{node}/"
    return {
        jobid: Placement(part.hosts, tuple(device for device in part.devices if device.path.startswith(below)))
        for jobid, part in share.items()
    }


def _as_counted(shares: Mapping[str, Share], shapes: Mapping[str, PodShape], live: LiveGraph) -> dict[str, Share]:
    """Convert the shares of pods (uids) that were recorded in the other form of the graph.

    Whole cores become the millicores that the pod takes now, but not more than those of the cores. Millicores become
    whole cores, rounded up, at least one: the first ones of the host that no other pod holds or recorded. If there are
    too few, the share names cores that the host does not have; they are missing, and the pod counts as foreign load. A
    pod that holds a whole host gets what the others leave of it.
    """
    pooled = live.accounting.millicores
    outdated = {uid for uid, share in shares.items() if any(_is_outdated(host, pooled) for host in _hosts(share))}
    if not outdated:
        return dict(shares)
    taken: dict[str, set[int]] = {}
    for share in (*live.holdings.shares.values(), *shares.values()):
        for host in _hosts(share):
            taken.setdefault(host.name, set()).update(host.cores)

    def converted(uid: str, host: HostHolding) -> HostHolding:
        if not _is_outdated(host, pooled):
            return host
        if pooled:
            millicores = min(CORE_MILLICORES * len(host.cores), shapes[uid].cores)
            return replace(host, cores=(), millicores=millicores, pods=1)
        there = taken.setdefault(host.name, set())
        cores = _lowest_free(there, min(MOST_PARTS, max(1, cores_of(host.millicores))))
        there.update(cores)
        return replace(host, cores=cores, millicores=0, pods=0)

    def whole(uid: str, host: HostHolding) -> HostHolding:
        all_of_it = live.loaded.whole_host(host.name) if host.exclusive and _is_outdated(host, pooled) else None
        if all_of_it is None:
            return converted(uid, host)
        there = (share for held in (live.holdings.shares, found) for other, share in held.items() if other != uid)
        beside = [other for share in there for other in _hosts(share) if other.name == host.name]
        return _rest(all_of_it.hosts[0], beside)

    found: dict[str, Share] = {}
    exclusive = {uid for uid in outdated if any(host.exclusive for host in _hosts(shares[uid]))}
    for uid in sorted(shares, key=lambda uid: (uid in exclusive, uid)):
        found[uid] = shares[uid]
        if uid in outdated:
            convert = whole if uid in exclusive else converted
            found[uid] = {
                jobid: Placement(tuple(convert(uid, host) for host in part.hosts), part.devices)
                for jobid, part in shares[uid].items()
            }
    return found


def _rest(whole: HostHolding, others: Iterable[HostHolding]) -> HostHolding:
    """The part of a whole host that no other pod holds."""
    gone = tuple(others)
    cores = {core for host in gone for core in host.cores}
    gpus = {gpu for host in gone for gpu in host.gpus}
    of_kind = {(kind, index) for host in gone for kind, indices in host.others for index in indices}
    left = ((kind, tuple(i for i in indices if (kind, i) not in of_kind)) for kind, indices in whole.others)
    return replace(
        whole,
        cores=tuple(core for core in whole.cores if core not in cores),
        gpus=tuple(gpu for gpu in whole.gpus if gpu not in gpus),
        memory_mib=max(0, whole.memory_mib - sum(host.memory_mib for host in gone)),
        millicores=max(0, whole.millicores - sum(host.millicores for host in gone)),
        pods=max(0, whole.pods - sum(host.pods for host in gone)),
        others=tuple((kind, indices) for kind, indices in left if indices),
    )


def _hosts(share: Share) -> Iterator[HostHolding]:
    for part in share.values():
        yield from part.hosts


def _is_outdated(host: HostHolding, pooled: bool) -> bool:
    return not host.pods if pooled else bool(host.pods or host.millicores)


def _lowest_free(taken: set[int], number: int) -> tuple[int, ...]:
    found: list[int] = []
    index = 0
    while len(found) < number:
        if index not in taken:
            found.append(index)
        index += 1
    return tuple(found)
