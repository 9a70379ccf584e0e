"""Objects of the API server, as JSON, and whole lists of them, for plugins' servers: public as `sdk.dynamic_client`.

    async with await connect(kubeconfig, context) as api:
        secret = await api.get("/api/v1/namespaces/kube-system/secrets/one")
        await api.replace("/api/v1/namespaces/kube-system/secrets/one", {**secret, "data": {…}})

A path is as the API has it; a query may follow it. Every request has a time-out. A read is sent again where that may
help, a write only where the API server certainly did nothing. `dynamic_informer` lists and watches.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlencode

import msgspec

from session_scheduler.cluster.errors import (
    Unavailable,
    Unreadable,
)
from session_scheduler.cluster.kube_access import load_access
from session_scheduler.cluster.kube_kinds import Page
from session_scheduler.cluster.kube_lists import in_pages
from session_scheduler.cluster.kube_requests import ApiClient, RequestSettings
from session_scheduler.cluster.unreadable import UNREADABLE

MERGE_PATCH: Final = "application/merge-patch+json"
"""A patch of RFC 7386."""
STRATEGIC_MERGE_PATCH: Final = "application/strategic-merge-patch+json"
"""A merge patch that merges lists by their items' keys; not for custom resources."""
JSON_PATCH: Final = "application/json-patch+json"
"""A patch of RFC 6902."""
APPLY_PATCH: Final = "application/apply-patch+yaml"
"""The fields that one manager wants: server-side apply."""
_SETTINGS: Final = RequestSettings(timeout=10.0, write_timeout=10.0, read_patience=15.0, connections=8)
_PAGE: Final = 500
"""Objects in a page of a list: it has no more time than any other request."""
_T = TypeVar("_T")


async def connect(kubeconfig: str | None = None, context: str | None = None) -> KubeApi:
    """The API server of `kubeconfig`, else of $KUBECONFIG, ~/.kube/config or the pod. Raises InputError.

    Nothing is asked of it yet: a credential plugin may run.
    """
    return KubeApi(ApiClient(await load_access(kubeconfig, context), _SETTINGS))


class KubeApi:
    """Requests for objects. `close` it; or `async with`. `client` is for the core's own modules."""

    def __init__(self, client: ApiClient) -> None:
        self.client = client

    async def get(self, path: str) -> dict[str, Any]:
        """The object at the path. Raises ClusterError: NotFound where there is none."""
        return _object(await self.client.read(path.lstrip("/"), what=path), path)

    async def list(self, path: str, kind: type[_T], *, labels: str = "", fields: str = "") -> tuple[_T, ...]:
        """The objects of the collection at the path as they were at one moment, which a selector may choose from.

        `kind` is a msgspec struct: of an object it has what is looked at. Raises ClusterError: Unreadable where an
        object is none of the kind, NotFound where no server has such objects, Invalid for a selector that is none.
        """
        chosen = {name: text for name, text in (("labelSelector", labels), ("fieldSelector", fields)) if text}

        async def ask(query: Mapping[str, str]) -> Page[_T]:
            return _page(await self.client.read(path.lstrip("/"), {**query, **chosen}, what=path), kind, path)

        return (await in_pages(ask, _PAGE)).items or ()

    async def create(self, path: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object in the collection at the path. Raises ClusterError: AlreadyExists where there is one."""
        return await self._write("POST", path, manifest)

    async def replace(self, path: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Replace the object at the path. Raises ClusterError: Conflict where it has another resourceVersion by now."""
        return await self._write("PUT", path, manifest)

    async def patch(self, path: str, patch: Any, kind: str = MERGE_PATCH) -> dict[str, Any]:
        """Patch the object at the path; `kind` is the patch's media type. Raises ClusterError."""
        return await self._write("PATCH", path, patch, kind)

    async def apply(
        self, path: str, manifest: Mapping[str, Any], *, manager: str, force: bool = False
    ) -> dict[str, Any]:
        """Server-side apply: create the object at the path, or change what the manifest says of it.

        Fields of the manifest become the manager's, and those that it had before and are not there any more go.
        Raises ClusterError: Conflict where another manager has a field with another value, unless forced, and where
        the manifest's metadata.uid is another's.
        """
        query = urlencode({"fieldManager": manager, "force": "true" if force else "false"})
        return await self._write("PATCH", f"{path}?{query}", manifest, APPLY_PATCH)

    async def delete(self, path: str, uid: str) -> None:
        """Delete the object at the path, if it has this uid. Raises ClusterError: NotFound, or Conflict for another."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        await self._write("DELETE", path, body)

    async def close(self) -> None:
        """Close all connections."""
        await self.client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _write(self, method: str, path: str, body: Any, content: str = "application/json") -> dict[str, Any]:
        text, what = json.dumps(body, ensure_ascii=False).encode(), path.partition("?")[0]
        return _object(await self.client.write(method, path.lstrip("/"), text, what=what, content=content), what)


def _object(answer: bytes, path: str) -> dict[str, Any]:
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError):  # a proxy's page, say; UnicodeDecodeError is a ValueError too
        found = None
    if not isinstance(found, dict):
        raise Unavailable(f"{path}: the answer is no JSON object")
    return found


def _page(answer: bytes, kind: type[_T], path: str) -> Page[_T]:
    try:
        return msgspec.json.decode(answer, type=Page[kind])  # type: ignore[valid-type]
    except UNREADABLE as error:
        _object(answer, path)  # where it is none at all, the error says that
        raise Unreadable(f"{path}: {error}") from None
