"""The placement request: what is to be placed, where it may go, and how it is tried.

`placing` makes one for a group and narrows it (`msgspec.structs.replace`) on the way to node sets, orders and plugins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from session_scheduler.framework.session import Session
from session_scheduler.framework.statement import Statement
from session_scheduler.model.columns import BoolColumn
from session_scheduler.model.groups import Group, Task


class PlacementRequest(msgspec.Struct, frozen=True, eq=False):
    """Place tasks of one group; what is placed is in the statement. A struct, for one is made for every pod."""

    session: Session
    statement: Statement
    group: Group
    tasks: Sequence[Task]
    """In the order in which they are placed."""
    needed: int = 1
    """How many of them must be placed at least."""
    expected: int = 1
    """How many tasks are to be placed now, these included: a hint for boards."""
    subset: BoolColumn | None = None
    """The rows where they may go; None for all."""
    assignment: Mapping[Task, int] | None = None
    """The row where each must go; None where that is open."""
    lone: bool = False
    """Whether it is one task, of a group that lacks none of any sub-group; that costs to find out in large groups."""
