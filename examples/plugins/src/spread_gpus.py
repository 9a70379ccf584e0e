"""GPU order: pods that share GPUs are spread over those of their node, in place of filling one after the other."""

from session_scheduler import NodeInfo, Session, hookimpl
from session_scheduler.model.groups import Task


class SpreadGpus:
    """Of the GPUs that have room the emptiest is best: less is shared as long as there are enough of them."""

    name = "spread-gpus"
    api_version = "2"

    def __init__(self, arguments: None) -> None:
        pass

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        session.add_gpu_order(self.worth)

    def worth(self, task: Task, node: NodeInfo, gpu: str) -> float:
        return -node.gpu_used(gpu)
