"""The command `fluence dashboard`."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from session_scheduler.errors import InputError
from session_scheduler.sdk.command_options import Context, Kubeconfig, LogFormatOption, LogLevelOption
from session_scheduler.sdk.commands import Host, LogFormat, LogLevel
from session_scheduler.sdk.extras import require

__all__ = ["SignIn", "dashboard"]

DEFAULT_BIND = "127.0.0.1:8090"


class SignIn(Enum):
    """How users sign in."""

    URL = "url"
    CLUSTER = "cluster"


def dashboard(
    command: typer.Context,
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE",
            help="Manifests, directories, a snapshot, or the result of simulate -o json. Without FILEs, the dashboard "
            "shows the cluster.",
        ),
    ] = None,
    *,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="The scheduler's configuration.")
    ] = None,
    resources: Annotated[
        str | None, typer.Option("--resources", metavar="FILE", help="The file of virtual resources.")
    ] = None,
    simulate: Annotated[
        bool,
        typer.Option("--simulate", help="Schedule the FILEs' pending pods in memory, and show the result."),
    ] = False,
    bind: Annotated[
        str,
        typer.Option("--bind", metavar="ADDRESS:PORT", help="The address to listen on; port 0 means any free port."),
    ] = DEFAULT_BIND,
    sign_in: Annotated[
        SignIn | None,
        typer.Option(
            "--sign-in",
            help="How users sign in: with a token for the cluster (cluster), or with the printed address, which works "
            "once (url). Default: url for FILEs and on a loopback address, otherwise cluster.",
        ),
    ] = None,
    prometheus: Annotated[
        str | None, typer.Option("--prometheus", metavar="URL", help="Read earlier values from this Prometheus.")
    ] = None,
    scheduler_metrics: Annotated[
        str | None,
        typer.Option(
            "--scheduler-metrics", metavar="URL", help="Read cycles and plugin timings from this /metrics endpoint."
        ),
    ] = None,
    tls_cert: Annotated[
        str | None, typer.Option("--tls-cert", metavar="FILE", help="Serve HTTPS with this certificate.")
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option("--tls-key", metavar="FILE", help="The key of that certificate.")
    ] = None,
    log_level: LogLevelOption = LogLevel.WARNING,
    log_format: LogFormatOption = None,
) -> int:
    """Show a cluster, or files, in the browser: queues, nodes, gangs, and why pods wait.

    Changes nothing. Follows the cluster and updates the pages every second, until SIGTERM. As `kubectl fluence
    dashboard` it opens the dashboard that runs in the cluster, through `kubectl port-forward`.

    Examples:
      fluence dashboard --kubeconfig ~/.kube/config
      fluence dashboard cluster.yaml workloads.yaml
      fluence dashboard now.json
      fluence dashboard --simulate examples/03-queues
      kubectl fluence dashboard
    """
    import asyncio
    import sys

    from session_scheduler.sdk.logs import log_to_stderr

    form = log_format or (LogFormat.CONSOLE if sys.stderr.isatty() else LogFormat.JSON)
    log_to_stderr(log_level, form.value)
    host, port = _address(bind)
    if command.find_root().info_name == "kubectl fluence" and not files:
        from fluence_lab.dashboard.port_forward import open_in_cluster

        return asyncio.run(open_in_cluster(kubeconfig, context, host, port))
    require("the dashboard", "bokeh", requirement="fluence-scheduler[dashboard]")
    from fluence_lab.dashboard.run import Options, is_loopback, serve
    from session_scheduler.sdk import event_loop

    if bool(tls_cert) != bool(tls_key):
        raise InputError("--tls-cert and --tls-key: set both or neither")
    for option, value in (("--kubeconfig", kubeconfig), ("--context", context)):
        if files and value is not None:
            raise InputError(f"{option}: the dashboard shows either FILEs or a cluster; remove one of the two")
    commands: Host = command.obj
    manifests, settings = commands.settings(files or [], config, {"--resources": resources})
    if simulate and not files:
        raise InputError("--simulate needs FILEs; name manifests, directories or a snapshot")
    if sign_in is SignIn.CLUSTER and files:
        raise InputError("--sign-in cluster needs a cluster; remove the FILEs, or sign in with the printed address")
    by_url = sign_in is SignIn.URL or (sign_in is None and (bool(files) or is_loopback(host)))
    options = Options(
        files=manifests,
        simulate=simulate,
        settings=settings,
        kubeconfig=kubeconfig,
        context=context,
        host=host,
        port=port,
        by_url=by_url,
        prometheus=_url("--prometheus", prometheus),
        scheduler_metrics=_url("--scheduler-metrics", scheduler_metrics),
        certificate=(tls_cert, tls_key) if tls_cert and tls_key else None,
    )
    return event_loop.run(serve(options))


def _address(bind: str) -> tuple[str, int]:
    """The host and port of --bind. Raises InputError."""
    host, colon, port = bind.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise InputError(f"--bind {bind}: expected ADDRESS:PORT, such as {DEFAULT_BIND}")
    return host, int(port)


def _url(option: str, url: str | None) -> str | None:
    if url is not None and not url.startswith(("http://", "https://")):
        raise InputError(f"{option} {url}: expected an address that starts with http:// or https://")
    return url
