"""Lists of all objects of a kind, fetched in pages of one resourceVersion."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from session_scheduler.cluster.errors import Gone
from session_scheduler.cluster.kube_kinds import Item, Page, Resource
from session_scheduler.cluster.kube_requests import ApiClient
from session_scheduler.cluster.port import Kube, Labels, Listing

PAGE: Final = 1000
"""Objects in a page: some 10 MB of pods, and 5 ms of decoding that block the event loop."""
_Ask = Callable[[Mapping[str, str]], Awaitable[Page[Item]]]
"""Fetches the page of a query; an empty query fetches all objects."""


# more than five parameters: what to list, and which of it to keep
async def list_all(
    client: ApiClient,
    resource: Resource[Kube],
    page_size: int = PAGE,
    *,
    namespace: str = "",
    selected: Mapping[str, str] = {},
    keep: Callable[[Kube], bool] | None = None,
) -> Listing[Kube]:
    """List all objects of a resource, in one request if its pages expire twice. Raises ClusterError.

    `selected` are the selectors of `selectors`; of each page only the objects for which `keep` is true stay in memory.
    """

    async def ask(query: Mapping[str, str]) -> Page[Kube]:
        path, what = resource.path(namespace), f"list of {resource.plural}"
        return resource.page(await client.read(path, {**query, **selected}, what=what, page=True), keep)

    try:
        whole = await in_pages(ask, page_size)
    except Gone:
        whole = await _joined(ask, 0)
    return Listing(whole.items or (), whole.metadata.resource_version)


def selectors(labels: Labels, node: str = "") -> dict[str, str]:
    """The query that selects objects with these labels, or pods on a node. Source: "Labels and Selectors"."""
    required = ",".join(f"!{key}" if value is None else f"{key}={value}" for key, value in sorted(labels.items()))
    return selection(required, f"spec.nodeName={node}" if node else "")


def selection(labels: str, fields: str) -> dict[str, str]:
    """The query with a label selector and a field selector; empty ones select all objects."""
    return {name: text for name, text in (("labelSelector", labels), ("fieldSelector", fields)) if text}


async def in_pages(ask: _Ask[Item], page_size: int) -> Page[Item]:
    """Fetch all pages and join them. Raises ClusterError: Gone if their resourceVersion expires twice."""
    try:
        return await _joined(ask, page_size)
    except Gone:  # the continue token expired: further pages would show a later moment
        return await _joined(ask, page_size)


async def _joined(ask: _Ask[Item], limit: int) -> Page[Item]:
    items: list[Item] = []
    query = {"limit": str(limit)} if limit else {}
    while True:
        page = await ask(query)
        items.extend(page.items or ())
        if not page.metadata.continue_token:
            return Page(page.metadata, tuple(items))
        query["continue"] = page.metadata.continue_token
