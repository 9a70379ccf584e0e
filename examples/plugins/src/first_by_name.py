"""Tie break: among nodes with equal scores, the first by name wins."""

import numpy as np

from session_scheduler import Session, hookimpl


class FirstByName:
    """Fills nodes with equal scores in the order of their names."""

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
