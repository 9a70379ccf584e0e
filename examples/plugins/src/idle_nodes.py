"""A page of the dashboard: nodes without pods."""

from fluence_lab.panels import Panel, PanelContext
from fluence_lab.view import Column, Table, View


def idle_nodes(context: PanelContext) -> View:
    """The nodes that run no pod, and their CPUs."""
    nodes = context.observed.nodes
    cpu = nodes.resources.index("cpu") if "cpu" in nodes.resources else None
    rows = tuple(
        (name, nodes.states[row], float(nodes.allocatable[row, cpu]) if cpu is not None else None)
        for row, name in enumerate(nodes.names)
        if nodes.pods[row] == 0
    )
    columns = (Column("Node", link="nodes?node={}"), Column("State"), Column("CPUs", numeric=True))
    summary = f"{len(rows):,} of {len(nodes.names):,} nodes run no pod."
    return View("idle-nodes", "Idle nodes", summary, tables=(Table("idle", "Idle nodes", columns, rows),))


PANEL = Panel("idle-nodes", "Idle nodes", idle_nodes)
