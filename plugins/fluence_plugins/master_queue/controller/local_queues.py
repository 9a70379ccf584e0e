"""LocalQueues that namespaces ask for, by an annotation: `vk.io/local-queues: gr1=group1, masterqueue`.

Each part is a LocalQueue's name and the ClusterQueue that it leads to, or one name for both. Only queues of
MasterQueues are given, and only what was made here is taken away again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from fluence_plugins.master_queue.api.informer_store import ObservedLocalQueue, ObservedNamespace
from fluence_plugins.master_queue.api.kueue import LocalQueue, LocalQueueSpec
from fluence_plugins.master_queue.names import is_dns_label, is_dns_subdomain
from session_scheduler.errors import shown
from session_scheduler.model.meta import ObjectMeta, OwnerReference

ANNOTATION: Final = "vk.io/local-queues"
"""On a namespace: the LocalQueues to create there, as `NAME=GROUP`, with commas between."""
MOST: Final = 64
"""Queues that a namespace may ask for."""


class DesiredLocalQueues(msgspec.Struct, frozen=True):
    """What is to be there, what is to go, and a line for each part that is not given."""

    wanted: tuple[LocalQueue, ...] = ()
    gone: tuple[ObservedLocalQueue, ...] = ()
    problems: tuple[str, ...] = ()


def desired_local_queues(
    namespaces: Iterable[ObservedNamespace],
    there: Mapping[str, ObservedLocalQueue],
    owners: Mapping[str, OwnerReference],
) -> DesiredLocalQueues:
    """What namespaces ask for. `there`: LocalQueues by namespace and name; `owners`: MasterQueues by ClusterQueue."""
    ours = {owner.uid for owner in owners.values()}
    wanted: dict[str, LocalQueue] = {}
    problems: list[str] = []
    replaced: dict[str, ObservedLocalQueue] = {}
    known_places: set[str] = set()
    kept: set[str] = set()
    for namespace in sorted(namespaces, key=lambda one: one.key):
        known_places.add(namespace.key)
        leads: dict[str, str] = {}
        parts = _parts(namespace)
        if len(parts) > MOST:
            problems.append(
                f"Namespace {namespace.key}: {ANNOTATION}: those after the first {MOST} are not given: ask for fewer"
            )
        for part in parts[:MOST]:
            field = f"Namespace {namespace.key}: {ANNOTATION}: {shown(part)}"
            name, _, queue = part.partition("=")
            queue = queue or name
            known = there.get(f"{namespace.key}/{name}")
            if not is_dns_label(name) or not is_dns_subdomain(queue):
                problems.append(f"{field} is no queue: write NAME=CLUSTERQUEUE, or one name for both")
            elif queue not in owners:
                kept.add(f"{namespace.key}/{name}={queue}")  # one that was given stays: its queue may come again
                problems.append(f"{field}: no MasterQueue has a ClusterQueue {queue}: name one that it has")
            elif leads.setdefault(name, queue) != queue:
                problems.append(f"{field}: {name} leads to {leads[name]} already: name each LocalQueue once")
            elif known is not None and known.owner not in ours:
                problems.append(f"{field}: there is a LocalQueue {name} that is not a MasterQueue's: name another")
            elif known is not None and known.spec.get("clusterQueue") != queue:
                replaced[known.key] = known  # its queue cannot be changed: it is made anew once it is gone
            else:
                meta = ObjectMeta(name=name, namespace=namespace.key, owner_references=(owners[queue],))
                wanted[f"{namespace.key}/{name}"] = LocalQueue(metadata=meta, spec=LocalQueueSpec(cluster_queue=queue))
    leaving = {one.key for one in there.values() if one.metadata.deletion_timestamp}
    old = [
        one
        for key, one in there.items()
        if one.owner in ours
        and one.metadata.namespace in known_places  # else namespaces may just not be listed
        and key not in wanted
        and key not in replaced
        and f"{key}={one.spec.get('clusterQueue')}" not in kept
    ]
    return DesiredLocalQueues(
        tuple(one for key, one in wanted.items() if key not in leaving),
        tuple(one for one in (*replaced.values(), *old) if one.key not in leaving),
        tuple(problems),
    )


def _parts(namespace: ObservedNamespace) -> list[str]:
    text = namespace.metadata.annotations.get(ANNOTATION, "")
    if namespace.metadata.deletion_timestamp:
        return []
    return [part for part in (one.strip() for one in text.split(",")) if part]
