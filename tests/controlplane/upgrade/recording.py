"""A recording of the cluster that an old scheduler left: a file with the objects and their uids.

It has the plans, annotations and claims in the format of the old commit. Loading it writes the objects directly to
etcd, because the API server assigns a new uid to every object that is created through it.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ..faults.crash import Crash
from ..faults.world import World
from ..harness import ControlPlane
from ..invariants import Manifest
from ..scheduler_process import Settings
from .situations import Situation

RECORDED: Final = Path(__file__).parent / "recorded"
_KINDS: Final = (
    ("v1", "Node", "nodes", False),
    ("resource.k8s.io/v1", "DeviceClass", "deviceclasses", False),
    ("resource.k8s.io/v1", "ResourceSlice", "resourceslices", False),
    ("coordination.k8s.io/v1", "Lease", "leases", False),
    ("v1", "ConfigMap", "configmaps", True),
    ("resource.k8s.io/v1", "ResourceClaim", "resourceclaims", True),
    ("scheduling.k8s.io/v1alpha2", "PodGroup", "podgroups", True),
    ("v1", "Pod", "pods", True),
)
"""apiVersion, kind, plural, and whether the objects are in the run's namespace."""
_RESTORED: Final = {kind: plural for _, kind, plural, _ in _KINDS}


@contextmanager
def cluster_of(plane: ControlPlane, folder: Path, situation: Situation, settings: Settings) -> Iterator[Crash]:
    """A namespace named after the situation, and its scheduler, not yet started; deleted at the end."""
    with World(plane, folder, settings, name=f"upgrade-{situation.name}") as world:
        crash = Crash(world)
        try:
            yield crash
        finally:
            world.keep_alive(False)
            crash.scheduler.kill()
            for path, found in _found(world):
                if found["kind"] in ("ResourceClaim", "ResourceSlice", "DeviceClass"):
                    plane.request("PATCH", path, {"metadata": {"finalizers": None}})
                    plane.request("DELETE", path)


def path_of(situation: str) -> Path:
    """Return the file of a recording."""
    return RECORDED / f"{situation}.json"


def record(world: World, situation: Situation, commit: str) -> None:
    """Write the state that the old scheduler left: an object a line, without this machine's name."""
    lines = []
    for _, manifest in _found(world):
        for field in ("managedFields", "resourceVersion"):
            manifest["metadata"].pop(field, None)
        lines.append(json.dumps(manifest, sort_keys=True).replace(f"{socket.gethostname()}_", "old_"))
    objects = ",\n".join(lines)
    path_of(situation.name).write_text(f'{{"commit": "{commit}", "objects": [\n{objects}\n]}}\n')


def load(world: World, situation: Situation) -> None:
    """Load a recording into a run's cluster."""
    for manifest in json.loads(path_of(situation.name).read_text())["objects"]:
        world.plane.restore(_RESTORED[manifest["kind"]], manifest)
        if manifest["kind"] == "Node":
            world.nodes.append(manifest["metadata"]["name"])


def _found(world: World) -> Iterator[tuple[str, Manifest]]:
    """Return a run's objects by path."""
    for version, kind, plural, namespaced in _KINDS:
        within = f"/{'api' if version == 'v1' else 'apis'}/{version}"
        within += f"/namespaces/{_namespace(world, kind)}" if namespaced or kind == "Lease" else ""
        for found in world.plane.request("GET", f"{within}/{plural}")[1]["items"]:
            if namespaced or _belongs(world, found["metadata"]["name"]):
                found.setdefault("apiVersion", version)
                found.setdefault("kind", kind)
                yield f"{within}/{plural}/{found['metadata']['name']}", found


def _namespace(world: World, kind: str) -> str:
    return "kube-system" if kind == "Lease" else world.namespace


def _belongs(world: World, name: str) -> bool:
    return name == "fluence" or name == world.namespace or name in world.nodes
