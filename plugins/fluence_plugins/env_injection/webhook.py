"""The server of `fluence webhook`: one replica from its first certificate check to its shutdown."""

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from typing import Final

from fluence_plugins.env_injection.certificate_files import CertificateFiles
from fluence_plugins.env_injection.certificate_reconciler import CHECK_SECONDS, CertificateReconciler, SecretPlace
from fluence_plugins.env_injection.certificates import DamagedError, Material, service_names
from fluence_plugins.env_injection.handlers import HandlerSettings, load_handlers
from fluence_plugins.env_injection.logs import log
from fluence_plugins.env_injection.metrics import WebhookMetrics
from fluence_plugins.env_injection.reviews import Reviews
from fluence_plugins.env_injection.server import TlsServer, load_chain, tls_context
from fluence_plugins.env_injection.webhook_configuration import Configuration
from session_scheduler.config.settings import Serving
from session_scheduler.sdk.dynamic_client import KubeApi, connect
from session_scheduler.sdk.http_server import Endpoints
from session_scheduler.sdk.signals import background, first_of, stop_on_signals
from session_scheduler.sdk.sockets import bound

LEAVING_SECONDS: Final = 2.0
"""How long the server accepts new connections after SIGTERM. Proxies see the end of a replica with a delay, and a pod
whose review finds no server is created without its environment.
"""


@dataclass(frozen=True, slots=True)
class WebhookOptions:
    """The command's options; see `docs/reference/webhook.md`."""

    handlers: tuple[str, ...] = ("fluxion",)
    scheduler_names: frozenset[str] = frozenset({"fluence"})
    resources: str | None = None
    sidecar_image: str | None = None
    slurm_scheduler_name: str = "slurm-bridge-scheduler"
    managed_namespaces: frozenset[str] = frozenset()
    scheduler_users: frozenset[str] = frozenset()
    sidecar_as_root: bool = False
    go_compatible: bool = False
    host: str = "0.0.0.0"  # noqa: S104 (a pod's only address)
    tls_port: int = 8443
    port: int = 8080
    service: str = "fluence-webhook"
    namespace: str = "kube-system"
    secret: str = "fluence-webhook-tls"  # noqa: S105 (a name)
    configuration: str = "fluence-webhook"
    dns_names: tuple[str, ...] = ()
    check_seconds: float = CHECK_SECONDS
    files: tuple[str, str] | None = None
    """The files of certificate and key, if another controller writes them."""
    kubeconfig: str | None = None
    context: str | None = None


_Certificate = CertificateReconciler | CertificateFiles


async def serve(options: WebhookOptions) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit status. Raises InputError."""
    with stop_on_signals() as stop:
        async with AsyncExitStack() as stack:
            await _Replica(options, stack).run(stop)
    return 0


class _Replica:
    def __init__(self, options: WebhookOptions, stack: AsyncExitStack) -> None:
        """Raises InputError. `stack` closes what the replica opens."""
        self._options = options
        self._stack = stack
        self._client: KubeApi | None = None
        self._metrics = WebhookMetrics(metadata.version("fluence-scheduler"))
        settings = HandlerSettings(
            options.scheduler_names,
            options.resources,
            self._metrics.registry,
            options.sidecar_image,
            slurm_scheduler_name=options.slurm_scheduler_name,
            managed_namespaces=options.managed_namespaces,
            scheduler_users=options.scheduler_users,
            sidecar_as_root=options.sidecar_as_root,
            go_compatible=options.go_compatible,
            api=self._connected if options.files is None else None,
        )
        self._handlers = load_handlers(options.handlers, settings)
        self._reviews = Reviews(self._handlers, self._metrics)
        self._context = tls_context()
        self._certified = asyncio.Event()
        self._serving = False
        self._leaving = False

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set."""
        options, stack = self._options, self._stack
        listening = stack.enter_context(bound(options.host, options.tls_port, ("--host", "--tls-port")))
        certificate = await self._make_certificate()
        for handler in self._handlers.values():
            log.info("%s", handler.contract())
        probes = Endpoints(
            Serving(host=options.host, port=options.port), metrics=self._metrics, health=lambda: None,
            ready=lambda: self._ready(certificate), health_check="webhook", fields=("--host", "--port"),
        )  # fmt: skip
        await stack.enter_async_context(probes)
        works = [certificate.run(options.check_seconds), *(handler.run() for handler in self._handlers.values())]
        tasks = await stack.enter_async_context(background(*works))
        await first_of(stop.wait(), self._certified.wait(), beside=tasks)
        if stop.is_set():
            return
        server = TlsServer(listening, self._context, self._reviews)
        stack.push_async_callback(server.stop)
        await server.start()
        self._serving = True
        await first_of(stop.wait(), beside=tasks)
        self._leaving = self._reviews.draining = True
        log.info("stopping: finishing reviews in flight")
        await asyncio.sleep(LEAVING_SECONDS)

    async def _connected(self) -> KubeApi:
        """The client, which the certificate is kept with, too."""
        if self._client is None:
            self._client = await self._stack.enter_async_context(
                await connect(self._options.kubeconfig, self._options.context)
            )
        return self._client

    async def _make_certificate(self) -> _Certificate:
        options = self._options
        if options.files is not None:
            return CertificateFiles(*options.files, serve=self._serve_chain, metrics=self._metrics, now=_now)
        names = service_names(options.service, options.namespace, options.dns_names)
        api = await self._connected()
        configuration = Configuration(
            api, options.configuration, service=options.service, namespace=options.namespace, hosts=names, now=_now
        )
        place = SecretPlace(options.namespace, options.secret)
        return CertificateReconciler(
            api, place, configuration, names, serve=self._serve_material, metrics=self._metrics, now=_now
        )  # fmt: skip

    def _serve_material(self, material: Material) -> None:
        """Raises DamagedError."""
        try:
            self._serve_chain(material.chain)
        except ssl.SSLError as error:
            raise DamagedError(f"cannot serve the certificate: {error.reason}") from None

    def _serve_chain(self, chain: bytes) -> None:
        """Raises ssl.SSLError."""
        load_chain(self._context, chain)
        self._certified.set()

    def _ready(self, certificate: _Certificate) -> Mapping[str, str | None]:
        if self._leaving:
            return {"serving": "this replica is shutting down"}
        return {"serving": None if self._serving else "not serving reviews yet"} | certificate.problems()


def _now() -> datetime:
    return datetime.now(UTC)
