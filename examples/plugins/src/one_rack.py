"""Subset nodes: a group is placed within one rack, or not at all."""

from collections.abc import Iterable

import numpy as np

from session_scheduler import PluginArguments, Session, hookimpl
from session_scheduler.model.columns import BoolColumn
from session_scheduler.model.groups import Group


class Arguments(PluginArguments):
    label: str = "rack"


class OneRack:
    """Divides the nodes by a label; those without it are in no rack."""

    name = "one-rack"
    api_version = "2"
    Arguments = Arguments

    def __init__(self, arguments: Arguments) -> None:
        self.label = arguments.label

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        racks = session.table.all_rows().label(self.label)

        def divide(group: Group, mask: BoolColumn) -> Iterable[BoolColumn]:
            return [mask & (racks == rack) for rack in np.unique(racks[mask]) if rack >= 0]

        session.add_subset_nodes(divide)
