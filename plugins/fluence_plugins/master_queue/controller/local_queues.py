"""The LocalQueues that namespaces request in an annotation: `vk.io/local-queues: gr1=group1, masterqueue`.

Each part names a LocalQueue and its ClusterQueue, or gives one name for both. Only ClusterQueues of MasterQueues are
allowed, and the controller deletes only LocalQueues that it created.
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
"""On a namespace: the LocalQueues to create there, as `NAME=GROUP`, separated by commas."""
MOST: Final = 64
"""The maximum number of queues that a namespace may request."""


class DesiredLocalQueues(msgspec.Struct, frozen=True):
    """The LocalQueues to create, those to delete, and a line for each part that is not granted."""

    wanted: tuple[LocalQueue, ...] = ()
    gone: tuple[ObservedLocalQueue, ...] = ()
    problems: tuple[str, ...] = ()


def desired_local_queues(
    namespaces: Iterable[ObservedNamespace],
    existing: Mapping[str, ObservedLocalQueue],
    owners: Mapping[str, OwnerReference],
) -> DesiredLocalQueues:
    """The LocalQueues that namespaces request. `existing`: by namespace and name; `owners`: the MasterQueue of each
    ClusterQueue.
    """
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
            problems.append(f"Namespace {namespace.key}: {ANNOTATION}: only the first {MOST} are used; request fewer")
        for part in parts[:MOST]:
            field = f"Namespace {namespace.key}: {ANNOTATION}: {shown(part)}"
            name, _, queue = part.partition("=")
            queue = queue or name
            known = existing.get(f"{namespace.key}/{name}")
            if not is_dns_label(name) or not is_dns_subdomain(queue):
                problems.append(f"{field} is not a valid queue; write NAME=CLUSTERQUEUE, or one name for both")
            elif queue not in owners:
                kept.add(f"{namespace.key}/{name}={queue}")  # an existing one stays: its queue may return
                problems.append(f"{field}: no MasterQueue has a ClusterQueue {queue}; use an existing one")
            elif leads.setdefault(name, queue) != queue:
                problems.append(f"{field}: {name} already points to {leads[name]}; name each LocalQueue once")
            elif known is not None and known.owner not in ours:
                problems.append(f"{field}: LocalQueue {name} does not belong to a MasterQueue; choose another name")
            elif known is not None and known.spec.get("clusterQueue") != queue:
                replaced[known.key] = known  # its queue is immutable: delete it, then create it again
            else:
                meta = ObjectMeta(name=name, namespace=namespace.key, owner_references=(owners[queue],))
                wanted[f"{namespace.key}/{name}"] = LocalQueue(metadata=meta, spec=LocalQueueSpec(cluster_queue=queue))
    leaving = {one.key for one in existing.values() if one.metadata.deletion_timestamp}
    old = [
        one
        for key, one in existing.items()
        if one.owner in ours
        and one.metadata.namespace in known_places  # others may just not be listed
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
