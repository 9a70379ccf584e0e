"""Options that several commands share, as annotations of parameters. Public, for plugin authors.

def one(*, kubeconfig: Kubeconfig = None, context: Context = None) -> None:
"""

from __future__ import annotations

from typing import Annotated

import typer

from session_scheduler.sdk.commands import LogFormat, LogLevel

Kubeconfig = Annotated[
    str | None,
    typer.Option(
        "--kubeconfig",
        metavar="FILE",
        help="The kubeconfig; default: KUBECONFIG, ~/.kube/config, or the pod's service account.",
    ),
]
"""`--kubeconfig FILE`."""
Context = Annotated[
    str | None,
    typer.Option("--context", metavar="NAME", help="The context of the kubeconfig; default: the current one."),
]
"""`--context NAME`."""
LogLevelOption = Annotated[LogLevel, typer.Option("--log-level", help="The lowest level to log to standard error.")]
"""`--log-level LEVEL`."""
LogFormatOption = Annotated[
    LogFormat | None,
    typer.Option("--log-format", help="The log format; default: console on a terminal, json elsewhere."),
]
"""`--log-format FORMAT`."""
