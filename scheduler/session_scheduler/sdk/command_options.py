"""Options that several commands have, to annotate a parameter with. Public, for plugin authors.

def one(*, kubeconfig: Kubeconfig = None, context: Context = None) -> None:
"""

from __future__ import annotations

from typing import Annotated

import typer

from session_scheduler.sdk.commands import LogFormat, LogLevel

Kubeconfig = Annotated[
    str | None,
    typer.Option("--kubeconfig", metavar="FILE", help="The cluster; else KUBECONFIG, ~/.kube/config, or the pod's."),
]
"""`--kubeconfig FILE`."""
Context = Annotated[
    str | None, typer.Option("--context", metavar="NAME", help="A context of the kubeconfig; else its current one.")
]
"""`--context NAME`."""
LogLevelOption = Annotated[LogLevel, typer.Option("--log-level", help="What to log to standard error, from here up.")]
"""`--log-level LEVEL`."""
LogFormatOption = Annotated[
    LogFormat | None, typer.Option("--log-format", help="How to log; else as people read it on a terminal.")
]
"""`--log-format FORMAT`."""
