"""An API server's part of server-side apply, as far as objects of Kueue's need it: no I/O, nothing but rules.

Source: the Kubernetes reference, "Server-Side Apply" (field management, conflicts, merge strategy).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from session_scheduler.sdk.dynamic_client import Conflict, NotFound

Path = tuple[str, ...]
ATOMIC = ("nodeLabels", "namespaceSelector")
IGNORED = ("metadata.name", "metadata.namespace", "metadata.uid")


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Each field that a manager can have, with its value. A list is one, except for owners: each has its uid as key."""
    if path == ("metadata", "ownerReferences"):
        for one in value:
            yield (*path, f'k:{{"uid":"{one["uid"]}"}}'), one
    elif isinstance(value, Mapping) and value and (not path or path[-1] not in ATOMIC):
        for name, inner in value.items():
            if ".".join((*path, name)) not in IGNORED and (path or name in ("metadata", "spec")):
                yield from leaves(inner, (*path, name))
    elif path:
        yield path, value


def fields_v1(paths: set[Path]) -> dict[str, Any]:
    """As metadata.managedFields[].fieldsV1 has them."""
    found: dict[str, Any] = {}
    for path in sorted(paths):
        at = found
        for step in path:
            at = at.setdefault(step if step.startswith("k:") else f"f:{step}", {})
    for name in ("f:labels", "f:ownerReferences"):  # both forms are seen; the dot is the mapping or list itself
        if name in found.get("f:metadata", {}):
            found["f:metadata"][name]["."] = {}
    return found


class Applied:
    """Objects by path, with who has which field; `changed` may change an object after each write, as a webhook."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.asked: list[tuple[str, str, dict[str, Any] | str, bool]] = []
        """What, path, body or uid, and whether by force."""
        self.webhook: Callable[[dict[str, Any]], None] = lambda obj: None
        self.error: Exception | None = None
        self._managers: dict[str, dict[tuple[str, str], set[Path]]] = {}
        self._version = 0

    async def apply(self, path: str, manifest: dict[str, Any], *, manager: str, force: bool = False) -> dict[str, Any]:
        self.asked.append(("apply", path, copy.deepcopy(manifest), force))
        if self.error is not None:
            raise self.error
        return self.written(path, manifest, manager, force=force)

    async def delete(self, path: str, uid: str) -> None:
        self.asked.append(("delete", path, uid, False))
        if self.error is not None:
            raise self.error
        if path not in self.objects:
            raise NotFound(f"{path}: 404")
        if self.objects[path]["metadata"]["uid"] != uid:
            raise Conflict(f"{path}: 409: uid")
        del self.objects[path], self._managers[path]

    def written(
        self, path: str, manifest: Mapping[str, Any], manager: str, *, force: bool = True, operation: str = "Apply"
    ) -> dict[str, Any]:
        """The object after the manager has written it. An Update takes away nothing here."""
        before = self.objects.get(path)
        uid = manifest["metadata"].get("uid")
        if uid is not None and (before is None or before["metadata"]["uid"] != uid):
            raise Conflict(f"{path}: 409: uid mismatch")
        managers = self._managers.setdefault(path, {})
        who, wanted = (manager, operation), dict(leaves(manifest))
        there = dict(leaves(before or {}))
        for other in [each for each in managers if each != who]:
            clash = {one for one in managers[other] & wanted.keys() if there.get(one) != wanted[one]}
            if clash and not force:
                raise Conflict(f"{path}: 409: conflict with {other[0]}")
            managers[other] -= clash
        kept = set().union(*(paths for each, paths in managers.items() if each != who))
        lost = managers.get(who, set()) - wanted.keys() - kept if operation == "Apply" else set()
        managers[who] = set(wanted) | (managers.get(who, set()) if operation != "Apply" else set())
        content = {path: value for path, value in {**there, **wanted}.items() if path not in lost}
        return self._kept(path, manifest, content, before)

    def _kept(self, path: str, manifest: Mapping[str, Any], content: dict[Path, Any], before: Any) -> dict[str, Any]:
        name = manifest["metadata"]
        obj: dict[str, Any] = {"apiVersion": manifest["apiVersion"], "kind": manifest["kind"], "metadata": {}}
        for place, value in content.items():
            at: Any = obj
            for step in place[:-1]:
                at = at.setdefault(step, [] if step == "ownerReferences" else {})
            if place[-1].startswith("k:"):
                at.append(copy.deepcopy(value))
            else:
                at[place[-1]] = copy.deepcopy(value)
        self.webhook(obj)
        old: dict[str, Any] = before["metadata"] if before else {"uid": f"uid-{self._version + 1}", "generation": 0}
        self._version += 1
        obj["metadata"] |= {key: name[key] for key in ("name", "namespace") if key in name}
        obj["metadata"] |= {"uid": old["uid"], "resourceVersion": str(self._version)}
        same = before is not None and before.get("spec") == obj.get("spec")
        obj["metadata"]["generation"] = old["generation"] + (not same)
        obj["metadata"]["managedFields"] = [
            {"manager": who, "operation": operation, "fieldsType": "FieldsV1", "fieldsV1": fields_v1(paths)}
            for (who, operation), paths in self._managers[path].items()
            if paths
        ]
        self.objects[path] = obj
        return copy.deepcopy(obj)
