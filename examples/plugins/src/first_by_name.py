"""Tie break: of nodes that score alike the first by name is taken."""

import numpy as np

from session_scheduler import Session, hookimpl


class FirstByName:
    """Fills nodes in the order of their names where nothing else tells them apart."""

    name = "first-by-name"
    api_version = "2"

    def __init__(self, arguments: None) -> None:
        pass

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        rows = session.table.row_of
        order = np.arange(session.table.size) + len(rows)
        for place, name in enumerate(sorted(rows)):
            order[rows[name]] = place - len(rows)
        session.set_tie_break(order)
