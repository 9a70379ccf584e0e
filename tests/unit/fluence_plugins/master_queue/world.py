"""A controller between an API server and a NATS that are both in memory. Time passes only where everybody waits."""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from fluence_plugins.master_queue.api.informer_store import RESOURCES
from fluence_plugins.master_queue.controller.controller import Controller, Handle
from fluence_plugins.master_queue.metrics import MasterQueueMetrics
from fluence_plugins.master_queue.nats.connection import Listener
from session_scheduler.cluster.dynamic_informer import Change
from session_scheduler.sdk.dynamic_client import Conflict, NotFound

from .virtual_time import now

CONNECTOR = "nats://u:password@nats:4222"
SUBJECT = "interlink.resources"
_KINDS = {resource.plural: resource for resource in RESOURCES}
_LATENCY = 0.004
_T = TypeVar("_T")


def document(**flavor: Any) -> dict[str, Any]:
    """The document's MasterQueue, with other values in its flavor."""
    return {
        "apiVersion": "vk.io/v1",
        "kind": "MasterQueue",
        "metadata": {"name": "masterqueue"},
        "spec": {
            "template": {"cohort": "masterqueue"},
            "flavors": [
                {
                    "name": "interlink",
                    "natsFlavor": {
                        "natsConnector": CONNECTOR,
                        "natsSubject": SUBJECT,
                        "virtualNode": "interlink",
                        "poolTimeout": 30,
                        "poolRegExp": ".*",
                    },
                    "nominalQuota": {"pods": 100},
                    "canLendTo": [{"queue": "group1", "lendingLimit": {"pods": 30}}],
                }
                | flavor
            ],
        },
    }


class Api:
    """Objects in memory, written by server-side apply; whoever follows hears of each change a moment later."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        """By plural and name (behind its namespace)."""
        self.writes: list[tuple[str, str]] = []
        """Plural (with /status) and name of each."""
        self.refuse: Callable[[str, str], Exception | None] = lambda *_: None
        """Asked before each write for what it is answered with."""
        self.takes: list[Handle] = []
        self.workloads: list[dict[str, Any]] = []
        self.unlisted: set[str] = set()
        """Plurals that are refused to who begins to follow."""
        self._version = 0

    # ------------------------------------------------------------------ what a KubeApi does

    async def apply(
        self, path: str, manifest: Mapping[str, Any], *, manager: str, force: bool = False
    ) -> dict[str, Any]:
        plural, key, part = _parted(path)
        await self._write(plural + part, key)
        body = copy.deepcopy(dict(manifest))
        known = self.objects.get((plural, key))
        if part:
            if known is None:
                raise NotFound(path)
            return self._changed(plural, key, {**known, "status": body["status"]})
        meta = body["metadata"]
        if known is None:
            return self.put(plural, {**body, "metadata": {**meta, "managedFields": [_managed(body, manager)]}})
        if not force or meta.get("uid", known["metadata"]["uid"]) != known["metadata"]["uid"]:
            raise Conflict(f"{path}: 409: it is another's")
        ours = next((one for one in known["metadata"].get("managedFields", ()) if one["manager"] == manager), {})
        before = ours.get("fieldsV1", {}).get("f:metadata", {}).get("f:labels", {})
        labels = {key: value for key, value in known["metadata"].get("labels", {}).items() if f"f:{key}" not in before}
        merged = {
            **known["metadata"],
            "labels": labels | meta.get("labels", {}),
            "managedFields": [_managed(body, manager)],
        }
        return self._changed(plural, key, {**known, "spec": body.get("spec", {}), "metadata": merged})

    async def delete(self, path: str, uid: str) -> None:
        plural, key, _ = _parted(path)
        await self._write(plural, key)
        known = self.objects.pop((plural, key), None)
        if known is None:
            raise NotFound(path)
        assert known["metadata"]["uid"] == uid
        self._tell(Change.DELETED, plural, known)

    # ------------------------------------------------------------------ what others do

    def put(self, plural: str, obj: Mapping[str, Any]) -> dict[str, Any]:
        """Another client creates an object, or replaces its spec and metadata."""
        meta = dict(obj["metadata"])
        key = f"{meta['namespace']}/{meta['name']}" if "namespace" in meta else meta["name"]
        known = self.objects.get((plural, key))
        if known is None:
            meta |= {"uid": f"uid-{plural}-{key}-{self._version}", "generation": 0}
            return self._changed(plural, key, {"spec": {}, **obj, "metadata": meta}, Change.ADDED)
        return self._changed(plural, key, {**known, **obj, "metadata": known["metadata"] | meta})

    def serve_all(self) -> None:
        """No kind is refused any more."""
        unlisted, self.unlisted = self.unlisted, set()
        for (plural, _), obj in self.objects.items():
            if plural in unlisted:
                self._tell(Change.ADDED, plural, obj)

    def drop(self, plural: str, key: str) -> None:
        """Another client deletes an object."""
        self._tell(Change.DELETED, plural, self.objects.pop((plural, key)))

    def named(self, plural: str) -> list[str]:
        """The names of a kind's objects, sorted."""
        return sorted(key for kind, key in self.objects if kind == plural)

    def counted(self) -> Counter[str]:
        """The writes since this was last asked, by kind."""
        counts = Counter(kind for kind, _ in self.writes)
        self.writes.clear()
        return counts

    async def list(self, path: str, kind: type[_T]) -> tuple[_T, ...]:  # last, since it hides the built-in `list`
        assert path.endswith("/workloads")
        await asyncio.sleep(_LATENCY)
        return msgspec.convert(self.workloads, tuple[kind, ...])  # type: ignore[valid-type]

    # ------------------------------------------------------------------ inside

    async def _write(self, kind: str, key: str) -> None:
        await asyncio.sleep(_LATENCY)
        self.writes.append((kind, key))
        error = self.refuse(kind, key)
        if error is not None:
            raise error

    def _changed(
        self, plural: str, key: str, obj: Mapping[str, Any], change: Change = Change.MODIFIED
    ) -> dict[str, Any]:
        before = self.objects.get((plural, key))
        made = copy.deepcopy(dict(obj))
        if before is not None and before == made:
            return copy.deepcopy(before)
        self._version += 1
        generation = made["metadata"]["generation"] + (before is None or before.get("spec") != made.get("spec"))
        made["metadata"] = made["metadata"] | {"resourceVersion": str(self._version), "generation": generation}
        self.objects[plural, key] = made
        self._tell(change, plural, made)
        return copy.deepcopy(made)

    def _tell(self, change: Change, plural: str, obj: Mapping[str, Any]) -> None:
        found = typed(plural, obj)
        if change is Change.DELETED:
            self._version += 1
            meta = msgspec.structs.replace(found.metadata, resource_version=str(self._version))
            found = msgspec.structs.replace(found, metadata=meta)
        for handler in self.takes:
            asyncio.get_running_loop().call_later(_LATENCY, handler, change, found)


def typed(plural: str, obj: Mapping[str, Any]) -> Any:
    """The object as the controller reads it."""
    return msgspec.convert(obj, _KINDS[plural].kind)


def _managed(body: Mapping[str, Any], manager: str) -> dict[str, Any]:
    fields: dict[str, dict[str, Any]] = {
        "f:metadata": {"f:labels": {f"f:{key}": {} for key in body["metadata"].get("labels", {})}},
        "f:spec": {f"f:{key}": {} for key in body.get("spec", {})},
    }
    for part in list(fields["f:metadata"]):
        if not fields["f:metadata"][part]:
            del fields["f:metadata"][part]
    kept = {name: inner for name, inner in fields.items() if inner}
    return {"manager": manager, "operation": "Apply", "fieldsV1": kept}


def _parted(path: str) -> tuple[str, str, str]:
    steps = path.split("/")[3:] if path.startswith("apis/") else path.split("/")
    namespace = ""
    if steps[0] == "namespaces" and len(steps) > 2:
        namespace, steps = f"{steps[1]}/", steps[2:]
    return steps[0], namespace + steps[1], "".join(f"/{step}" for step in steps[2:])


class Nats:
    """Connections that are up once they are wanted, unless a test has put them in `down`."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.wanted: dict[str, list[str]] = {}
        self.down: dict[str, str] = {}
        """By connector: why it has no connection."""
        self._up: set[str] = set()
        self.unheard = 0.0
        """For how long a connection that is lost was not heard."""

    def follow(self, wanted: Mapping[str, list[str]]) -> None:
        self.wanted = dict(wanted)
        self._up &= wanted.keys()
        asyncio.get_running_loop().call_soon(self.look)

    def look(self) -> None:
        """Report what has changed."""
        for connector in self.wanted:
            if connector in self.down:
                self._up.discard(connector)
                self.listener.lost(connector, self.down[connector], self.unheard)
            elif connector not in self._up:
                self._up.add(connector)
                self.listener.connected(connector)

    def problem(self, connector: str) -> str | None:
        return self.down.get(connector)

    def states(self) -> dict[str, bool]:
        return {connector.rpartition("@")[2]: connector not in self.down for connector in self.wanted}

    async def run(self) -> None:
        await asyncio.Event().wait()


class World:
    """A controller that runs from `async with` to its end; another one over the same `api` is another replica."""

    def __init__(self, *masters: dict[str, Any], api: Api | None = None) -> None:
        self.api = api or Api()
        self._masters = masters
        self.meter = MasterQueueMetrics()
        self.nats: Nats

    async def __aenter__(self) -> Self:
        for master in self._masters:
            self.api.put("masterqueues", master)
        follow = _Following(self.api)
        self.controller = Controller(
            self.api,  # type: ignore[arg-type]
            self._connect,  # type: ignore[arg-type]
            meter=self.meter,
            now=now,
            follow=follow.by,  # type: ignore[arg-type]
        )
        self._task = asyncio.create_task(self.controller.run())
        await asyncio.sleep(0.5)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.api.takes.clear()
        self._task.cancel()
        (ended,) = await asyncio.gather(self._task, return_exceptions=True)
        assert isinstance(ended, asyncio.CancelledError), ended

    def _connect(self, listener: Listener) -> Nats:
        self.nats = Nats(listener)
        return self.nats

    def publish(self, pool: str, data: bytes | None = None, *, subject: str = SUBJECT, **quotas: Any) -> None:
        """A message of a pool."""
        message = msgspec.json.encode({"quotas": quotas}) if data is None else data
        self.nats.listener.message(CONNECTOR, subject, f"{subject}.{pool}", message)

    async def publish_for(self, seconds: int, *pools: str, every: int = 10, **quotas: Any) -> None:
        """Pools that go on publishing."""
        for _ in range(0, seconds, every):
            for pool in pools:
                self.publish(pool, **quotas)
            await asyncio.sleep(every)

    def spec(self, plural: str, key: str) -> Any:
        return self.api.objects[plural, key]["spec"]

    def flavors(self, queue: str) -> list[str]:
        return [
            one["name"] for group in self.spec("clusterqueues", queue)["resourceGroups"] for one in group["flavors"]
        ]

    def status(self, name: str = "masterqueue") -> Any:
        return self.api.objects["masterqueues", name]["status"]

    def pools(self, name: str = "masterqueue") -> dict[str, str]:
        return {pool["name"]: pool["state"] for pool in self.status(name).get("pools", ())}

    def conditions(self, name: str = "masterqueue") -> dict[str, tuple[str, str]]:
        return {one["type"]: (one["status"], one["reason"]) for one in self.status(name)["conditions"]}


class _Following:
    def __init__(self, api: Api) -> None:
        self._api = api

    @property
    def refused(self) -> frozenset[type]:
        return frozenset(_KINDS[plural].kind for plural in self._api.unlisted)

    def by(self, take: Handle) -> _Following:
        self._take = take
        return self

    async def start(self) -> list[Any]:
        self._api.takes.append(self._take)
        return [
            typed(plural, obj) for (plural, _), obj in self._api.objects.items() if plural not in self._api.unlisted
        ]

    async def run(self) -> None:
        await asyncio.Event().wait()
