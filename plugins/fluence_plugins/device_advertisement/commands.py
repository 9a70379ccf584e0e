"""The options of the command `fluence device-plugin`, which `__main__` uses."""

from __future__ import annotations

from typing import Annotated

import typer

from session_scheduler.sdk.commands import LogFormat, LogLevel
from session_scheduler.sdk.extras import require

KUBELET_DIR = "/var/lib/kubelet/device-plugins"
POD_RESOURCES = "/var/lib/kubelet/pod-resources/kubelet.sock"
ACCOUNT_DIR = "/var/run/secrets/kubernetes.io/serviceaccount"


def device_plugin(
    *,
    resources: Annotated[
        str | None,
        typer.Option("--resources", metavar="FILE", help="The file of virtual resources. Default: FLUENCE_RESOURCES."),
    ] = None,
    capacity: Annotated[
        int | None,
        typer.Option(
            "--capacity",
            metavar="N",
            help="The number of units of each type. Default: FLUENCE_RESOURCE_CAPACITY, or 1000.",
        ),
    ] = None,
    kubelet_dir: Annotated[
        str, typer.Option("--kubelet-dir", metavar="DIR", help="The directory of kubelet.sock.")
    ] = KUBELET_DIR,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="The address of /metrics, /healthz, /livez and /readyz.")
    ] = "0.0.0.0",  # noqa: S104 (a pod's only address; it serves no secrets)
    port: Annotated[
        int, typer.Option("--port", metavar="N", min=0, max=65535, help="The port; 0 means any free port.")
    ] = 8080,
    report_gpus: Annotated[
        bool, typer.Option("--report-gpus", help="Report the devices of the scheduler's GPU reservation pods.")
    ] = False,
    pod_resources: Annotated[
        str, typer.Option("--pod-resources", metavar="SOCKET", help="The kubelet's socket that --report-gpus reads.")
    ] = POD_RESOURCES,
    account_dir: Annotated[
        str, typer.Option("--account-dir", metavar="DIR", help="The service account that --report-gpus uses.")
    ] = ACCOUNT_DIR,
    log_level: Annotated[LogLevel, typer.Option("--log-level", help="The lowest level to log.")] = LogLevel.INFO,
    log_format: Annotated[
        LogFormat | None,
        typer.Option("--log-format", help="The log format. Default: console on a terminal, otherwise json."),
    ] = None,
) -> None:
    """Advertise device types to this node's kubelet, until SIGTERM. SIGUSR1 writes its stacks to standard error.

    Examples:
      fluence device-plugin --resources resources.yaml
      fluence device-plugin --resources resources.yaml --capacity 10 --kubelet-dir /var/lib/kubelet/device-plugins
    """
    import json
    import os
    import sys

    require("the device plugin", "grpc", "google.protobuf", requirement="fluence-scheduler[device-plugin]")
    form = log_format or (LogFormat.CONSOLE if sys.stderr.isatty() else LogFormat.JSON)
    options = {
        "resources": resources,
        "capacity": capacity,
        "kubelet_dir": kubelet_dir,
        "host": host,
        "port": port,
        "report_gpus": report_gpus,
        "pod_resources": pod_resources,
        "account_dir": account_dir,
        "log_level": log_level.value,
        "log_format": form.value,
    }
    # Replace this process: the command line's libraries would keep a sixth of the memory of a process that runs for
    # years.
    os.execv(sys.executable, [sys.executable, "-P", "-m", __package__, json.dumps(options)])  # noqa: S606
