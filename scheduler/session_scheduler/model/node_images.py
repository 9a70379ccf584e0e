"""Index of container images by name: the rows of the nodes that have an image, and its size. ImageLocality reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from session_scheduler.model.objects import ContainerImage, Node

_NOWHERE: Mapping[int, int] = {}


class NodeImages:
    """The images of the node table's rows. The first call of `sizes` builds the index, so it is free if unused."""

    def __init__(self) -> None:
        self._of_row: dict[int, tuple[ContainerImage, ...]] = {}
        self._sizes: dict[str, dict[int, int]] | None = None

    def put(self, row: int, node: Node) -> None:
        """Replace the images of a row by those of its node."""
        images = node.status.images
        if self._of_row.get(row, ()) == images:
            return
        self.remove(row)
        if images:
            self._of_row[row] = images
            self._add(row, images)

    def remove(self, row: int) -> None:
        """Remove the images of a row."""
        images = self._of_row.pop(row, ())
        sizes = self._sizes
        if sizes is None:
            return
        for name in {name for image in images for name in image.names or ()}:
            del sizes[name][row]
            if not sizes[name]:
                del sizes[name]

    def _add(self, row: int, images: tuple[ContainerImage, ...]) -> None:
        if self._sizes is not None:
            for image in images:
                for name in image.names or ():
                    self._sizes.setdefault(name, {})[row] = image.size_bytes

    def sizes(self, name: str) -> Mapping[int, int]:
        """By row: the size in bytes, for the nodes that have an image of that name."""
        if self._sizes is None:
            self._sizes = {}
            for row, images in self._of_row.items():
                self._add(row, images)
        return self._sizes.get(name, _NOWHERE)
