"""`kubectl fluence dashboard`: opens the dashboard that runs in the cluster, through `kubectl port-forward`."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from session_scheduler.errors import InputError
from session_scheduler.sdk.signals import first_of, stop_on_signals

__all__ = ["open_in_cluster"]

LABEL: Final = "app.kubernetes.io/name=fluence-dashboard"
INSTALLED: Final = ("kube-system", "fluence-dashboard")
"""The Service of deploy/options/dashboard.yaml. It is preferred: users can create Services with the label elsewhere."""
_FORWARDING: Final = re.compile(rb"Forwarding from (\S+) ->")
_SECONDS: Final = 30.0


async def open_in_cluster(kubeconfig: str | None, context: str | None, host: str, port: int) -> int:
    """Forward a local port to the dashboard's Service until SIGTERM, SIGINT or the end of the connection.

    Returns the exit status. Raises InputError.
    """
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise InputError("kubectl is not on the PATH; install it, or run `fluence dashboard`")
    command = [
        kubectl,
        *(["--kubeconfig", kubeconfig] if kubeconfig else []),
        *(["--context", context] if context else []),
    ]
    namespace, name = await _service(command)
    with stop_on_signals() as stop:
        local = f"{port or ''}:http"
        process = await asyncio.create_subprocess_exec(
            *command, "port-forward", "--namespace", namespace, "--address", host, f"service/{name}", local, stdout=PIPE
        )
        try:
            await first_of(_forward(process, namespace, name), stop.wait())
            return 0 if stop.is_set() else (process.returncode or 1)
        finally:
            with suppress(ProcessLookupError):
                process.terminate()
            await process.wait()


async def _service(command: Sequence[str]) -> tuple[str, str]:
    """The namespace and name of the dashboard's Service. Raises InputError."""
    process = await asyncio.create_subprocess_exec(
        *command,
        "get",
        "services",
        "--all-namespaces",
        "--selector",
        LABEL,
        "--output",
        "json",
        stdout=PIPE,
        stderr=PIPE,
    )
    try:
        async with asyncio.timeout(_SECONDS):
            output, errors = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise InputError(f"kubectl did not list Services within {_SECONDS:g} s; check the cluster's address") from None
    if process.returncode:
        raise InputError(f"kubectl cannot list Services: {' '.join(errors.decode(errors='replace').split())}")
    items: list[dict[str, Any]] = json.loads(output)["items"]
    found = {(item["metadata"]["namespace"], item["metadata"]["name"]) for item in items}
    if not found:
        raise InputError(
            "no dashboard runs in this cluster; apply deploy/options/dashboard.yaml, or run `fluence dashboard`"
        )
    if INSTALLED in found:
        return INSTALLED
    if len(found) > 1:
        names = ", ".join(f"{namespace}/{name}" for namespace, name in sorted(found))
        raise InputError(
            f"several Services have the label {LABEL} ({names}); run kubectl port-forward for the one that "
            "you trust, because it receives your token"
        )
    return found.pop()


async def _forward(process: Process, namespace: str, name: str) -> None:
    """Print the address once kubectl forwards it, and wait for its end."""
    shown = False
    while process.stdout is not None and (line := await process.stdout.readline()):
        found = _FORWARDING.search(line)
        if found and not shown:
            shown = True
            text = f"open http://{found[1].decode()} and sign in with a token for the cluster"
            print(f"fluence dashboard: {text} (Service {namespace}/{name})", file=sys.stderr, flush=True)
    await process.wait()
