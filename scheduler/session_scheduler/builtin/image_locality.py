"""The ImageLocality plugin: prefers nodes that already have a pod's images."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from session_scheduler.builtin.without_arguments import WithoutArguments
from session_scheduler.framework.session import Session
from session_scheduler.hookspecs import SKIP, Normalise, Scope, Skip, hookimpl
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import IntColumn, NodeView
from session_scheduler.model.objects import Pod

_MIB: Final = 1024 * 1024
LEAST: Final = 23 * _MIB
"""Bytes of images up to which the score is 0."""
MOST_OF_EACH: Final = 1000 * _MIB
"""Bytes for each container at which the score is 100."""


class ImageLocality(WithoutArguments):
    """Scores by the size of the pod's images on a node, each scaled by the share of nodes that have it."""

    name = "ImageLocality"
    ignores_requests = True
    score_scope = Scope.STATIC
    normalise = Normalise.NONE

    @hookimpl
    def prepare(self, session: Session, cls: TaskClass) -> Skip | IntColumn:
        """The score of every row. Skips pods with no image on any node."""
        table, spec = session.table, cls.pod.spec
        every = len(table.row_of)
        sums = np.zeros(table.size, np.int64)
        for name in _images(cls.pod):
            sizes = table.images.sizes(name)
            share = len(sizes) / every if every else 0.0
            for row, size in sizes.items():
                sums[row] += int(size * share)
        if not sums.any():
            return SKIP
        most = MOST_OF_EACH * (len(spec.containers) + len(spec.init_containers))
        return 100 * (np.clip(sums, LEAST, most) - LEAST) // (most - LEAST)

    @hookimpl
    def score(self, nodes: NodeView, state: IntColumn) -> IntColumn:
        """The score of the images on each node, 0 to 100."""
        return state[nodes.row_numbers]


def _images(pod: Pod) -> Iterator[str]:
    """The images of containers and image volumes with their tags, repeated ones too."""
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        yield with_tag(container.image)
    for volume in pod.spec.volumes:
        image = volume.get("image")
        if isinstance(image, dict):
            yield with_tag(str(image.get("reference", "")))


def with_tag(image: str) -> str:
    """The image's name as container runtimes list it: with the tag `latest` unless it has a tag or digest."""
    return image if image.rfind(":") > image.rfind("/") else f"{image}:latest"
