"""Lists of all objects of a kind, fetched in pages that show one moment."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from session_scheduler.cluster.errors import Gone
from session_scheduler.cluster.kube_kinds import Item, Page, Resource
from session_scheduler.cluster.kube_requests import ApiClient
from session_scheduler.cluster.port import Kube, Listing

PAGE: Final = 1000
"""Objects in a page: some 10 MB of pods, and 5 ms of decoding that block the event loop."""
_Ask = Callable[[Mapping[str, str]], Awaitable[Page[Item]]]
"""Fetches the page of a query; an empty query fetches all objects."""


async def list_all(
    client: ApiClient, resource: Resource[Kube], page_size: int = PAGE, namespace: str = ""
) -> Listing[Kube]:
    """List all objects of a resource, in one request if its pages expire twice. Raises ClusterError."""

    async def ask(query: Mapping[str, str]) -> Page[Kube]:
        text = await client.read(resource.path(namespace), query, what=f"list of {resource.plural}", page=True)
        return resource.page(text)

    try:
        whole = await in_pages(ask, page_size)
    except Gone:
        whole = await _joined(ask, 0)
    return Listing(whole.items or (), whole.metadata.resource_version)


async def in_pages(ask: _Ask[Item], page_size: int) -> Page[Item]:
    """Fetch all pages and join them. Raises ClusterError: Gone if the API server forgets their moment twice."""
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
