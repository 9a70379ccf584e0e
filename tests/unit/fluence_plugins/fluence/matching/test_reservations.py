"""What a gang is asked to be placed in, while it is looked for when it can start."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import numpy as np

from fluence_plugins.fluence.matching.reservations import Promising


def test_a_gang_that_is_tried_on_several_sets_of_nodes_may_have_the_room_of_all() -> None:
    promising = Promising(Mock(), Mock(), Mock(), Mock(), Mock())
    cls: Any = object()
    task: Any = object()
    promising.asks = True
    for room in ([2, 0, 0], [0, 1, 0]):
        promising.heard([task], {cls: np.array(room)})
    promising.heard([task, object()], {cls: np.array([9, 9, 9])})  # type: ignore[list-item]
    assert promising._asked is not None
    assert promising._asked[0] == (task,)
    assert promising._asked[1][cls].tolist() == [2, 1, 0]
