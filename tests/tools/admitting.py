"""JSON patches applied as an API server applies them, and the pods of a Job after its controllers and the webhook."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry

from fluence_plugins.env_injection.fluxion import FluxionHandler
from fluence_plugins.env_injection.gang import GangHandler
from fluence_plugins.env_injection.handlers import AdmissionRequest, Decision, Handler, HandlerSettings, Refusal
from fluence_plugins.env_injection.quantum import QuantumHandler

Object = dict[str, Any]
IMAGE = "registry.example/fluence-sidecar:1.2"


def settings(image: str | None = IMAGE, resources: str | None = None) -> HandlerSettings:
    return HandlerSettings(frozenset({"fluence"}), resources, CollectorRegistry(), image)


def handlers(image: str | None = IMAGE, resources: str | None = None) -> list[Handler]:
    """All handlers, in the order of the shipped configuration."""
    made = settings(image, resources)
    return [QuantumHandler(made), GangHandler(made), FluxionHandler(made)]


def request(kind: str = "Pod", operation: str = "CREATE") -> AdmissionRequest:
    return AdmissionRequest(uid="1", operation=operation, namespace="default", name="", dry_run=False, kind=kind)


def patched(obj: Mapping[str, Any], operations: Sequence[Mapping[str, Any]]) -> Object:
    """The object with "add" and "remove" applied (RFC 6902)."""
    made = copy.deepcopy(dict(obj))
    for operation in operations:
        *way, last = (part.replace("~1", "/").replace("~0", "~") for part in operation["path"].lstrip("/").split("/"))
        target: Any = made
        for step in way:
            target = target[int(step)] if isinstance(target, list) else target[step]
        if operation["op"] == "remove":
            del target[int(last) if isinstance(target, list) else last]
        elif isinstance(target, list):
            assert last == "-" or int(last) <= len(target)
            target.insert(len(target) if last == "-" else int(last), operation["value"])
        else:
            assert operation["op"] == "add"
            target[last] = operation["value"]
    return made


def admitted(obj: Mapping[str, Any], through: Iterable[Handler], operation: str = "CREATE") -> Object | Refusal:
    """The object after each handler of its kind. Checks that a second run of the handler changes nothing."""
    kind = obj.get("kind", "Pod")
    group = str(obj.get("apiVersion", "v1")).rpartition("/")[0]
    asked = [
        each for each in through
        if (group, kind) in getattr(each, "kinds", (("", "Pod"),)) and operation in each.operations
    ]  # fmt: skip
    made: Object = dict(obj)
    for handler in asked:
        answer = decided(handler, made, request(kind, operation))
        if isinstance(answer, Refusal):
            return answer
        made = patched(made, answer)
    for handler in asked:
        assert not decided(handler, made, request(kind, operation)), f"{handler} would change it again"
    return made


def decided(handler: Handler, obj: Mapping[str, Any], asked: AdmissionRequest) -> Decision:
    """What a handler answers."""
    answer = handler.mutate(obj, asked)
    if not isinstance(answer, Awaitable):
        return answer

    async def waited() -> Decision:
        return await answer

    return asyncio.run(waited())


def pods_of(job: Mapping[str, Any]) -> list[Object]:
    """The pods that the Job controller would create."""
    spec, metadata = job["spec"], job["metadata"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": metadata["name"], "uid": "u", "controller": True}
    made = []
    for index in range(spec["parallelism"]):
        pod = copy.deepcopy(spec["template"])
        pod |= {"apiVersion": "v1", "kind": "Pod"}
        own = pod.setdefault("metadata", {})
        own |= {
            "name": f"{metadata['name']}-{index}",
            "namespace": metadata.get("namespace", "default"),
            "ownerReferences": [owner],
        }
        if spec.get("completionMode") == "Indexed":
            own.setdefault("annotations", {})["batch.kubernetes.io/job-completion-index"] = str(index)
        own.setdefault("labels", {})["job-name"] = metadata["name"]
        made.append(pod)
    return made
