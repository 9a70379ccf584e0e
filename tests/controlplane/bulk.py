"""Bulk requests as administrator, for benchmarks: create, count, watch and delete thousands of objects."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Any

import aiohttp
import yaml

from .harness import ADMIN, ControlPlane

_AT_ONCE = 32
_PATIENCE = 300.0
_NOW = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
Manifest = dict[str, Any]


class BulkError(Exception):
    """The API server rejected a request, or did not finish it in time."""


class Bulk:
    """Requests to a control plane from one event loop; use it with `async with`."""

    def __init__(self, plane: ControlPlane) -> None:
        kubeconfig = yaml.safe_load(plane.kubeconfig(ADMIN).read_text())
        self._server = plane.server
        self._tls = ssl.create_default_context(cafile=plane.ca_file)
        self._tls.verify_flags &= ~ssl.VERIFY_X509_STRICT  # the API server's own CA has no key identifier
        self._headers = {"Authorization": f"Bearer {kubeconfig['users'][0]['user']['token']}"}
        self._session: aiohttp.ClientSession | None = None
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def __aenter__(self) -> Bulk:
        limits = aiohttp.ClientTimeout(total=_PATIENCE, sock_connect=5)
        self._session = aiohttp.ClientSession(headers=self._headers, timeout=limits)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        at: TracebackType | None) -> None:  # fmt: skip
        assert self._session is not None
        await self._session.close()

    async def request(
        self, method: str, path: str, body: object = None, *, query: Mapping[str, str] | None = None,
        content: str = "application/json", expected: Iterable[int] = (200, 201),
    ) -> Any:  # fmt: skip
        """Return the decoded response of one request. Raises BulkError for an unexpected status."""
        assert self._session is not None
        data = None if body is None else json.dumps(body)
        async with (
            self._slots,
            self._session.request(method, self._server + path, data=data, params=query,
                                  headers={"Content-Type": content}, ssl=self._tls) as response,
        ):  # fmt: skip
            text = await response.text()
        if response.status not in expected:
            raise BulkError(f"{method} {path}: {response.status}: {text[:500]}")
        return json.loads(text)

    async def lines(self, path: str, query: Mapping[str, str]) -> aiohttp.ClientResponse:
        """Open a watch. The caller reads it line by line, and closes it."""
        assert self._session is not None
        limits = aiohttp.ClientTimeout(total=None, sock_connect=5)
        response = await self._session.get(self._server + path, params={**query, "watch": "1"}, ssl=self._tls,
                                           timeout=limits, read_bufsize=2**22)  # fmt: skip
        if response.status != HTTPStatus.OK:
            raise BulkError(f"watch of {path}: {response.status}: {await response.text()}")
        return response

    # ------------------------------------------------------------------ bulk requests

    async def create(self, path: str, manifests: Iterable[Manifest]) -> None:
        """POST each object."""
        await asyncio.gather(*(self.request("POST", path, manifest) for manifest in manifests))

    async def patch(self, paths: Iterable[str], body: object) -> None:
        """Send the same merge patch to each object."""
        content = "application/merge-patch+json"
        await asyncio.gather(*(self.request("PATCH", path, body, content=content) for path in paths))

    async def delete(self, paths: Iterable[str]) -> None:
        """DELETE each object at once, without a grace period."""
        await asyncio.gather(*(self.request("DELETE", path, _NOW) for path in paths))

    async def create_nodes(self, manifests: list[Manifest]) -> None:
        """Create nodes as their kubelets would, without the taint that admission adds to new nodes."""
        await self.create("/api/v1/nodes", manifests)
        await self.patch((f"/api/v1/nodes/{one['metadata']['name']}" for one in manifests), {"spec": {"taints": None}})

    async def count(self, path: str) -> int:
        """Return the number of objects."""
        answer = await self.request("GET", path, query={"limit": "1"})
        return len(answer["items"] or ()) + int(answer["metadata"].get("remainingItemCount", 0))

    async def clear(self, path: str) -> None:
        """Delete all objects of a collection, and wait until none is left. Raises BulkError."""
        deadline = asyncio.get_running_loop().time() + _PATIENCE
        while await self.count(path):
            if asyncio.get_running_loop().time() > deadline:
                raise BulkError(f"{path} is not empty after {_PATIENCE:.0f} s")
            await self.request("DELETE", path, _NOW, expected=(200, 504))  # many objects exceed a request's time
