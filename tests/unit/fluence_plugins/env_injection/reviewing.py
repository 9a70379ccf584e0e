"""Admission reviews, good and bad, and an application that answers them, for the tests beside this file."""

import base64
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp.test_utils import TestClient, TestServer

from fluence_plugins.env_injection.handlers import AdmissionRequest, Handler, Operation, Refusal
from fluence_plugins.env_injection.metrics import WebhookMetrics
from fluence_plugins.env_injection.reviews import Reviews

PATCH: list[Operation] = [{"op": "add", "path": "/metadata/labels", "value": {"seen": "ä"}}]


class Labels:
    """A handler that labels pods, refuses those named "bad", and fails at those named "broken"."""

    operations = frozenset({"CREATE"})
    sub_resources = frozenset({""})

    def __init__(self) -> None:
        self.asked: list[AdmissionRequest] = []

    def contract(self) -> str:
        return "labels"

    def mutate(self, pod: Mapping[str, Any], request: AdmissionRequest) -> Sequence[Operation] | Refusal:
        self.asked.append(request)
        if request.name == "bad":
            return Refusal("it is bad", 409)
        if request.name == "broken":
            raise KeyError("secret value")
        return [] if request.name == "plain" else PATCH

    async def run(self) -> None:
        return


def review(pod: Any = None, **request: Any) -> dict[str, Any]:
    """A review as API servers send it."""
    whole = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
        "requestResource": {"group": "", "version": "v1", "resource": "pods"},
        "namespace": "default",
        "operation": "CREATE",
        "userInfo": {"username": "admin", "groups": ["system:masters"], "extra": {"key": ["value"]}},
        "object": {"metadata": {"name": "p"}, "spec": {}} if pod is None else pod,
        "oldObject": None,
        "dryRun": False,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
    } | request
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": whole}


def text_of(value: Any) -> bytes:
    return json.dumps(value).encode()


def patch_of(response: Mapping[str, Any]) -> Any:
    """The patch in a response."""
    assert response["patchType"] == "JSONPatch"
    return json.loads(base64.b64decode(response["patch"]))


@asynccontextmanager
async def served(
    handlers: Mapping[str, Handler], metrics: WebhookMetrics | None = None, **more: Any
) -> AsyncIterator[tuple[TestClient[Any, Any], Reviews]]:
    """A client of the application over plain HTTP."""
    reviews = Reviews(handlers, metrics or WebhookMetrics(), **more)
    async with TestClient(TestServer(reviews.application())) as client:
        yield client, reviews
