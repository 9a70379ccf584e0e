"""Client for objects of any kind as JSON, for the servers of plugins: public as `sdk.dynamic_client`.

    async with await connect(kubeconfig, context) as api:
        secret = await api.get("/api/v1/namespaces/kube-system/secrets/one")
        await api.replace("/api/v1/namespaces/kube-system/secrets/one", {**secret, "data": {…}})

A path is the API's own and may have a query. Every request has a timeout. The client retries reads after temporary
errors. It retries a write only if the API server certainly did not execute it. `dynamic_informer` lists and watches.
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
from session_scheduler.cluster.kube_lists import in_pages, selection
from session_scheduler.cluster.kube_requests import ApiClient, RequestSettings
from session_scheduler.cluster.unreadable import UNREADABLE

MERGE_PATCH: Final = "application/merge-patch+json"
"""A JSON merge patch (RFC 7386)."""
STRATEGIC_MERGE_PATCH: Final = "application/strategic-merge-patch+json"
"""A merge patch that merges lists by the keys of their items. Custom resources do not support it."""
JSON_PATCH: Final = "application/json-patch+json"
"""A JSON patch (RFC 6902)."""
APPLY_PATCH: Final = "application/apply-patch+yaml"
"""A server-side apply: the fields that one field manager sets."""
_SETTINGS: Final = RequestSettings(timeout=10.0, write_timeout=10.0, read_patience=15.0, connections=8)
_PAGE: Final = 500
"""Objects in a page of a list. A page has the same timeout as any other request."""
_T = TypeVar("_T")


async def connect(kubeconfig: str | None = None, context: str | None = None) -> KubeApi:
    """A client for the API server of `kubeconfig`, or of $KUBECONFIG, ~/.kube/config or the pod's service account.

    Sends no request to the API server; may run a credential plugin. Raises InputError.
    """
    return KubeApi(ApiClient(await load_access(kubeconfig, context), _SETTINGS))


class KubeApi:
    """Requests for objects. Call `close`, or use it with `async with`. `client` is for the core's own modules."""

    def __init__(self, client: ApiClient) -> None:
        self.client = client

    async def get(self, path: str) -> dict[str, Any]:
        """Return the object at the path. Raises ClusterError: NotFound if there is none."""
        return _object(await self.client.read(path.lstrip("/"), what=path), path)

    async def list(self, path: str, kind: type[_T], *, labels: str = "", fields: str = "") -> tuple[_T, ...]:
        """Return a consistent list of all objects in the collection at the path that match the selectors.

        `kind` is a msgspec struct with the fields to decode. Raises ClusterError: Unreadable if an object does not
        match `kind`, NotFound if the API server does not serve the collection, or Invalid for an invalid selector.
        """
        selected = selection(labels, fields)

        async def ask(query: Mapping[str, str]) -> Page[_T]:
            return _page(await self.client.read(path.lstrip("/"), {**query, **selected}, what=path), kind, path)

        return (await in_pages(ask, _PAGE)).items or ()

    async def create(self, path: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object in the collection at the path. Raises ClusterError: AlreadyExists if there is one."""
        return await self._write("POST", path, manifest)

    async def replace(self, path: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Replace the object at the path. Raises ClusterError: Conflict if its resourceVersion has changed."""
        return await self._write("PUT", path, manifest)

    async def patch(self, path: str, patch: Any, kind: str = MERGE_PATCH) -> dict[str, Any]:
        """Patch the object at the path; `kind` is the patch's media type. Raises ClusterError."""
        return await self._write("PATCH", path, patch, kind)

    async def apply(
        self, path: str, manifest: Mapping[str, Any], *, manager: str, force: bool = False
    ) -> dict[str, Any]:
        """Server-side apply: create the object at the path, or change the fields that the manifest contains.

        The manager then owns the fields of the manifest. The API server removes fields that the manager owned before
        and that the manifest does not contain. Raises ClusterError: Conflict if another manager owns a field with
        another value (unless `force` is set), or if the object's uid differs from the manifest's metadata.uid.
        """
        query = urlencode({"fieldManager": manager, "force": "true" if force else "false"})
        return await self._write("PATCH", f"{path}?{query}", manifest, APPLY_PATCH)

    async def delete(self, path: str, uid: str) -> None:
        """Delete the object at the path if it has this uid. Raises NotFound, or Conflict for another uid."""
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
    except (ValueError, RecursionError):  # for example a proxy's page; UnicodeDecodeError is a ValueError
        found = None
    if not isinstance(found, dict):
        raise Unavailable(f"{path}: the response is not a JSON object")
    return found


def _page(answer: bytes, kind: type[_T], path: str) -> Page[_T]:
    try:
        return msgspec.json.decode(answer, type=Page[kind])  # type: ignore[valid-type]
    except UNREADABLE as error:
        _object(answer, path)  # raises a clearer error if it is not an object
        raise Unreadable(f"{path}: {error}") from None
