"""The placement request: the tasks to place, and the rows that they may go to.

`placing` creates one for a group and narrows it (`msgspec.structs.replace`) for each node set, task order and plugin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from session_scheduler.framework.session import Session
from session_scheduler.framework.statement import Statement
from session_scheduler.model.columns import BoolColumn
from session_scheduler.model.groups import Group, Task


class PlacementRequest(msgspec.Struct, frozen=True, eq=False):
    """Place tasks of one group; the statement records the placements. A struct is cheap: every pod needs one."""

    session: Session
    statement: Statement
    group: Group
    tasks: Sequence[Task]
    """In placement order."""
    needed: int = 1
    """The minimum number of tasks to place."""
    expected: int = 1
    """How many tasks follow, these included: a hint for boards."""
    subset: BoolColumn | None = None
    """The rows that the tasks may go to; None for all rows."""
    level: str | None = None
    """The label of the level that must contain the tasks in one domain; None for no such restriction."""
    assignment: Mapping[Task, int] | None = None
    """The row that each task must go to; None to choose the best rows."""
    lone: bool = False
    """Whether this is one task of a group that lacks no sub-group members, which is slow to compute in large groups."""
