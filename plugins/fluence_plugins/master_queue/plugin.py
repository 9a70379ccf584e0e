"""The plugin `master-queue`: runs the controller of MasterQueues while `fluence run` leads. It has no session hooks."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING

from fluence_plugins.master_queue.arguments import MasterQueueArguments
from fluence_plugins.master_queue.metrics import MasterQueueMetrics
from session_scheduler import API_VERSION, hookimpl
from session_scheduler.sdk.bindings import Runtime

if TYPE_CHECKING:
    from prometheus_client import Metric

    from fluence_plugins.master_queue.controller.controller import Controller


class MasterQueuePlugin:
    """Turns remote pools into Kueue queues."""

    name = "master-queue"
    api_version = API_VERSION
    Arguments = MasterQueueArguments
    single = True

    def __init__(self, arguments: MasterQueueArguments) -> None:
        self._arguments = arguments
        self.counters = MasterQueueMetrics()
        self._controller: Controller | None = None

    @hookimpl
    def serve(self, runtime: Runtime) -> AbstractAsyncContextManager[None]:
        """Run the controller. Does nothing without an API server, as in a simulation."""
        from fluence_plugins.master_queue.controller.controller import Controller, running
        from fluence_plugins.master_queue.nats.connections import Connections

        api = runtime.api
        if api is None:
            return nullcontext()
        settings = self._arguments

        def make() -> Controller:
            self._controller = Controller(
                api,
                lambda listener: Connections(settings.connectors, listener, meter=self.counters),
                meter=self.counters,
                status_seconds=settings.status_seconds,
            )
            return self._controller

        return running(make)

    @hookimpl
    def metrics(self) -> list[Metric]:
        """The metrics of messages, pools and writes."""
        if self._controller is None:
            return self.counters.families()
        return self.counters.families(self._controller.pool_samples(), self._controller.connector_states())
