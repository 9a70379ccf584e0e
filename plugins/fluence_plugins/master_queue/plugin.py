"""The plugin `master-queue`: keeps MasterQueues where `fluence run` leads. It takes no part in sessions."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING

from fluence_plugins.master_queue.arguments import MasterQueueArguments
from fluence_plugins.master_queue.metrics import Measured
from session_scheduler import API_VERSION, hookimpl
from session_scheduler.sdk.bindings import Runtime

if TYPE_CHECKING:
    from prometheus_client import Metric


class MasterQueuePlugin:
    """One for all profiles."""

    name = "master-queue"
    api_version = API_VERSION
    Arguments = MasterQueueArguments
    single = True

    def __init__(self, arguments: MasterQueueArguments) -> None:
        self._arguments = arguments
        self.measured = Measured()

    @hookimpl
    def serve(self, runtime: Runtime) -> AbstractAsyncContextManager[None]:
        """Keep MasterQueues. Nothing where there is no API server, as in a simulation."""
        from fluence_plugins.master_queue.controller.controller import controller, running

        api = runtime.api
        if api is None:
            return nullcontext()
        settings = self._arguments
        return running(
            lambda: controller(api, settings.connectors, self.measured, status_seconds=settings.status_seconds)
        )

    @hookimpl
    def metrics(self) -> list[Metric]:
        """Messages, pools and writes."""
        return self.measured.families()
