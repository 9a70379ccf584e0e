"""Runs the dashboard's process: opens the files or follows the cluster, and serves pages until SIGTERM."""

from __future__ import annotations

import ipaddress
import json
import os
import ssl
import sys
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
from aiohttp import web

from fluence_lab.dashboard import prometheus
from fluence_lab.dashboard.access import REVIEW_SECONDS, Access, LocalAccess, ReviewedAccess
from fluence_lab.dashboard.pages import Observes
from fluence_lab.dashboard.server import Dashboard
from fluence_lab.panels import Panel, installed
from session_scheduler.config.settings import LeaderElection, SchedulerConfig
from session_scheduler.errors import InputError
from session_scheduler.sdk import dynamic_client
from session_scheduler.sdk.access_reviews import AccessReviews
from session_scheduler.sdk.leader import connect
from session_scheduler.sdk.signals import background, first_of, stop_on_signals
from session_scheduler.sdk.sockets import bound

__all__ = ["Options", "is_loopback", "opened", "serve", "serving", "simulation", "tls_context"]

_SIMULATED: Final = "The pages show the cluster after the simulation."
_NOT_SCHEDULED: Final = "Pending pods were not scheduled; use --simulate to schedule them in memory."
STOP_SECONDS: Final = 1.0
IDLE_SECONDS: Final = 75.0
MOST_CACHED: Final = 65_536
"""Reviews to remember: each user has one for each namespace."""


class Options(msgspec.Struct, frozen=True):
    """The options of the command."""

    files: Sequence[str] = ()
    """Empty for a live cluster."""
    simulate: bool = False
    """Schedule the pending pods of the files in memory before they are shown."""
    settings: SchedulerConfig | None = None
    kubeconfig: str | None = None
    context: str | None = None
    host: str = "127.0.0.1"
    port: int = 8090
    by_url: bool = True
    """Users sign in with an address that works once; else with tokens of the cluster."""
    prometheus: str | None = None
    scheduler_metrics: str | None = None
    certificate: tuple[str, str] | None = None
    """The files of a certificate and its key."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def serve(options: Options) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit status. Raises InputError or ClusterError."""
    context = tls_context(options.certificate)
    with stop_on_signals() as stop:
        async with AsyncExitStack() as stack:
            observer, panels, note = await opened(options, stack)
            access = await _access(options, stack)
            dashboard = Dashboard(observer, access, panels, live=not options.files, note=note)
            address = await stack.enter_async_context(serving(dashboard, options.host, options.port, context))
            address = f"{'https' if context else 'http'}://{address}"
            if isinstance(access, LocalAccess):
                access.show = lambda token: _say(f"open {address}/?token={token} (it works once)")
                access.renew()
            else:
                _say(f"serving {address}: sign in with a token for the cluster")
            tasks: list[Coroutine[Any, Any, None]] = [dashboard.pages.run()]
            if not options.files:
                api = await stack.enter_async_context(await dynamic_client.connect(options.kubeconfig, options.context))
                tasks.append(dashboard.pages.fetches.run(api))
            if options.scheduler_metrics:
                tasks.append(prometheus.scrape(options.scheduler_metrics, dashboard.pages.recorder))
            if options.prometheus:
                tasks.append(prometheus.backfill(options.prometheus, dashboard.pages.recorder))
            async with background(*tasks) as beside:
                await first_of(stop.wait(), beside=beside)
    return 0


@asynccontextmanager
async def serving(
    dashboard: Dashboard, host: str, port: int, context: ssl.SSLContext | None = None
) -> AsyncGenerator[str]:
    """Serve on this address; the value is the bound one, HOST:PORT. Raises InputError if it cannot be bound."""
    listening = bound(host, port, ("--bind", "--bind"))
    runner = web.AppRunner(
        dashboard.application(),
        access_log=None,
        handle_signals=False,
        handler_cancellation=True,
        keepalive_timeout=IDLE_SECONDS,
        shutdown_timeout=STOP_SECONDS,
    )
    await runner.setup()
    try:
        await web.SockSite(runner, listening, ssl_context=context).start()
        name, number = listening.getsockname()[:2]
        yield f"[{name}]:{number}" if ":" in name else f"{name}:{number}"
    finally:
        await runner.cleanup()
        listening.close()


async def opened(options: Options, stack: AsyncExitStack) -> tuple[Observes, list[Panel], str]:
    """What the pages show, the pages, and a sentence for all of them. Raises InputError or ClusterError."""
    if options.files:
        return await _opened_files(options)
    from session_scheduler.observation.live import follow

    settings = options.settings or SchedulerConfig()
    observer = await stack.enter_async_context(follow(settings, kubeconfig=options.kubeconfig, context=options.context))
    return observer, installed(), ""


async def _opened_files(options: Options) -> tuple[Observes, list[Panel], str]:
    from fluence_lab.dashboard.results import ResultObserver, result_panel
    from session_scheduler.observation.files import open_files, simulated

    saved = simulation(options.files[0]) if len(options.files) == 1 else None
    if saved is not None:
        if options.simulate:
            raise InputError(f"--simulate: {options.files[0]} is the result of a simulation; remove the option")
        return ResultObserver(options.files[0]), [result_panel(saved)], ""
    if options.simulate:
        result, observer = await simulated(options.files, config=options.settings)
        return observer, [result_panel(result), *installed()], _SIMULATED
    observer = await open_files(options.files, config=options.settings)
    waits = bool((observer.observe().pods.nodes < 0).any())
    return observer, installed(), _NOT_SCHEDULED if waits else ""


async def _access(options: Options, stack: AsyncExitStack) -> Access:
    if options.by_url or options.files:
        return LocalAccess()
    election = LeaderElection(enabled=False)
    cluster = await stack.enter_async_context(connect(options.kubeconfig, options.context, election))
    reviews = AccessReviews(cluster.client, seconds=REVIEW_SECONDS, most_cached=MOST_CACHED)
    return ReviewedAccess(reviews)


def simulation(file: str) -> dict[str, Any] | None:
    """The saved JSON of `fluence simulate`, if the file is one."""
    path = Path(file)
    if path.suffix != ".json" or not os.path.isfile(path):
        return None
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):  # what reads manifests reports it
        return None
    known = isinstance(value, dict) and "kind" not in value and {"pods", "summary"} <= value.keys()
    return value if known else None


def tls_context(files: tuple[str, str] | None) -> ssl.SSLContext | None:
    """The TLS context for a certificate and its key; None without them. Raises InputError."""
    if files is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(*files, password=lambda: b"")
    except OSError as error:
        raise InputError(
            f"--tls-cert {files[0]}, --tls-key {files[1]}: {error.strerror or error}; name PEM files"
        ) from error
    return context


def _say(text: str) -> None:
    print(f"fluence dashboard: {text}", file=sys.stderr, flush=True)
