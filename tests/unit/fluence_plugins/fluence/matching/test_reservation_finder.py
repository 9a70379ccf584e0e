"""What a gang is asked to be placed in, while it is looked for when it can start."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import numpy as np

from fluence_plugins.fluence.matching.reservation_finder import ReservationFinder


def test_a_gang_that_is_tried_on_several_sets_of_nodes_may_have_the_room_of_all() -> None:
    finder = ReservationFinder(Mock(), Mock(), Mock(), Mock(), Mock())
    cls: Any = object()
    task: Any = object()
    finder.is_probing = True
    for room in ([2, 0, 0], [0, 1, 0]):
        finder.note_capacity([task], {cls: np.array(room)})
    finder.note_capacity([task, object()], {cls: np.array([9, 9, 9])})  # type: ignore[list-item]
    assert finder._asked is not None
    assert finder._asked[0] == (task,)
    assert finder._asked[1][cls].tolist() == [2, 1, 0]
