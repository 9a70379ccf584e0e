"""Keeps pods that must not be preempted off spot instances, and leaves spot instances for last."""

from session_scheduler import NodeInfo, PluginArguments, Scope, Session, hookimpl
from session_scheduler.model.groups import Group, Task


class Arguments(PluginArguments):
    """Which nodes are spot instances, and what the others score more."""

    spot_label_key: str = "kai.scheduler/instance-type"
    spot_label_value: str = "spot"
    non_spot_score: float = 1000.0


class SpotInstances:
    """The plugin: a predicate and a node order, registered when a session opens."""

    name = "spot-instance-manager"
    api_version = "2"
    Arguments = Arguments

    def __init__(self, arguments: Arguments) -> None:
        self.arguments = arguments

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        """Both answers depend on the node's labels and on whether the group can be preempted: they are static."""
        session.add_predicate(self.may_use, scope=Scope.STATIC)
        session.add_node_order(self.worth, scope=Scope.STATIC)

    def is_spot(self, node: NodeInfo) -> bool:
        return node.labels.get(self.arguments.spot_label_key) == self.arguments.spot_label_value

    def may_use(self, task: Task, group: Group, node: NodeInfo) -> str | None:
        if group.preemptible or not self.is_spot(node):
            return None
        return "node(s) were spot instances, which non-preemptible pods must not use"

    def worth(self, task: Task, node: NodeInfo) -> float:
        return 0.0 if self.is_spot(node) else self.arguments.non_spot_score
