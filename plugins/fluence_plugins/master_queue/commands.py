"""The command `fluence master-queue`."""

from pathlib import Path
from typing import Annotated

import typer

from session_scheduler.sdk.command_options import Context, Kubeconfig, LogFormatOption, LogLevelOption
from session_scheduler.sdk.commands import LogFormat, LogLevel


def master_queue(
    *,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="The configuration file; without it, the defaults apply."),
    ] = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    log_level: LogLevelOption = LogLevel.INFO,
    log_format: LogFormatOption = None,
) -> int:
    """Reconcile Kueue's queues with MasterQueues and remote pools, until SIGTERM.

    SIGUSR1 writes its stacks to standard error.

    Examples:
      fluence master-queue --config master-queue.yaml
      fluence master-queue --kubeconfig ~/.kube/config --context hub
    """
    import sys

    from fluence_plugins.master_queue.server import load, serve
    from session_scheduler.sdk import event_loop
    from session_scheduler.sdk.logs import log_to_stderr

    form = log_format or (LogFormat.CONSOLE if sys.stderr.isatty() else LogFormat.JSON)
    log_to_stderr(log_level, form.value)
    return event_loop.run(serve(load(config), kubeconfig, context))
