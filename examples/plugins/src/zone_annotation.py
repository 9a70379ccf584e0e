"""Bind mutation: annotates each pod with its node's zone, in the request that binds it."""

from collections.abc import Mapping

from session_scheduler import PluginArguments, Session, hookimpl
from session_scheduler.model.groups import Task
from session_scheduler.model.objects import Pod


class Arguments(PluginArguments):
    label: str = "topology.kubernetes.io/zone"
    annotation: str = "example.com/zone"


class ZoneAnnotation:
    """Writes an annotation; `simulate` shows it in a column of its own."""

    name = "zone-annotation"
    api_version = "2"
    Arguments = Arguments

    def __init__(self, arguments: Arguments) -> None:
        self.arguments = arguments

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        def annotate(task: Task, node: str) -> Mapping[str, str] | None:
            found = session.table.nodes[session.table.row_of[node]]
            zone = found.metadata.labels.get(self.arguments.label) if found is not None else None
            return None if zone is None else {self.arguments.annotation: zone}

        session.add_bind_mutation(annotate)

    @hookimpl
    def report(self, pod: Pod) -> Mapping[str, str | None]:
        return {"zone": pod.metadata.annotations.get(self.arguments.annotation)}
