"""What live pods have recorded is held again: at the start, and when their nodes come back."""

from __future__ import annotations

from collections.abc import Sequence

from fluence_plugins.fluence.graph.live_graph import LiveGraph
from fluence_plugins.fluence.graph.records import as_counted, from_json
from fluence_plugins.fluence.matching.node_loads import NodeLoads
from fluence_plugins.fluence.matching.pod_requests import requests_of
from session_scheduler.sdk.bindings import Holding


def recover_holdings(holdings: Sequence[Holding], live: LiveGraph, loads: NodeLoads) -> dict[str, str]:
    """Hold what these pods recorded; what cannot be held counts as foreign load. Returns why, by uid of the pod."""
    shares = {}
    lost: dict[str, str] = {}
    for holding in holdings:
        requests = holding.task.cls.requests
        share = from_json(holding.held, holding.node, live, requests) if holding.held is not None else None
        if share is not None:
            shares[holding.task.uid] = share
        asked = requests_of(holding.task.pod, requests, live.accounting).devices
        if asked and not any(part.devices for part in (share or {}).values()):
            wanted = ", ".join(f"{count} {kind}" for kind, count in sorted(asked.items()))
            lost[holding.task.uid] = f"it asks for {wanted}, and no record says which: others may be given them, too"
        elif share is None and holding.held is not None:
            lost[holding.task.uid] = "its record of what it holds is not valid here"
    before = set(live.holdings.missing)
    concerned = {holding.node for holding in holdings} & loads.tasks_on.keys()
    for name in concerned:
        live.foreign.drop(name)
    fresh = {uid: share for uid, share in shares.items() if uid not in live.holdings.shares}
    classes = {holding.task.uid: holding.task.cls for holding in holdings}
    live.allocations.replay(as_counted(fresh, classes, live))
    loads.graph_changed(before)
    missing = live.holdings.missing
    lost |= dict.fromkeys(missing.keys() & shares, "the graph does not have all of it, or another holds it")
    for name in sorted(concerned):
        loads.count(name)
    return lost
