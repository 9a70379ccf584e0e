"""Whole lists, in pages that show one moment."""

from __future__ import annotations

from typing import Final

from session_scheduler.cluster.errors import Gone
from session_scheduler.cluster.kube_kinds import Resource
from session_scheduler.cluster.kube_requests import ApiClient
from session_scheduler.cluster.port import Kube, Listing

PAGE: Final = 1000
"""Objects in a page: some 10 MB of pods, 5 ms of decoding between two turns of the event loop."""
_EXPIRIES: Final = 2
"""How often a list in pages may take so long that it expires; after that all is asked for at once."""


async def list_all(client: ApiClient, resource: Resource[Kube], page_size: int = PAGE) -> Listing[Kube]:
    """All objects of a resource. Raises ClusterError."""
    for expired in range(_EXPIRIES + 1):
        try:
            return await _pages(client, resource, page_size if expired < _EXPIRIES else 0)
        except Gone:  # the moment that the pages show is forgotten: they would not be one moment any more
            if expired == _EXPIRIES:
                raise
    raise AssertionError("unreachable: the last round returns or raises")


async def _pages(client: ApiClient, resource: Resource[Kube], limit: int) -> Listing[Kube]:
    items: list[Kube] = []
    query = {"limit": str(limit)} if limit else {}
    while True:
        text = await client.read(resource.path(), query, what=f"list of {resource.plural}", page=True)
        page = resource.page(text)
        items.extend(page.items or ())
        if not page.metadata.go_on:
            return Listing(tuple(items), page.metadata.resource_version)
        query["continue"] = page.metadata.go_on
