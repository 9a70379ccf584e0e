"""The command `fluence webhook`."""

import ipaddress
import re
from typing import Annotated

import typer

from session_scheduler.errors import InputError
from session_scheduler.sdk.command_options import Context, Kubeconfig, LogFormatOption, LogLevelOption
from session_scheduler.sdk.commands import LogFormat, LogLevel
from session_scheduler.sdk.extras import require

_LABEL = "[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_DNS_NAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*")


def webhook(
    *,
    handlers: Annotated[
        str, typer.Option("--handlers", metavar="NAMES", help="The handlers, separated by commas.")
    ] = "fluxion",
    scheduler_names: Annotated[
        list[str] | None,
        typer.Option(
            "--scheduler-name", metavar="NAME", help="Mutate the pods of this scheduler; may be repeated. [fluence]"
        ),
    ] = None,
    resources: Annotated[
        str | None,
        typer.Option("--resources", metavar="FILE", help="The file of virtual resources [env var: FLUENCE_RESOURCES]."),
    ] = None,
    sidecar_image: Annotated[
        str | None,
        typer.Option(
            "--sidecar-image",
            metavar="IMAGE",
            help="The sidecar's image, for pods with the label observe.",
            envvar="FLUENCE_SIDECAR_IMAGE",
        ),
    ] = None,
    sidecar_as_root: Annotated[
        bool, typer.Option("--sidecar-as-root", help="Let the sidecar's image run as root.")
    ] = False,
    go_compatible: Annotated[
        bool, typer.Option("--go-compatible", help="Give pods everything that the Go version's webhook gave them.")
    ] = False,
    slurm_scheduler_name: Annotated[
        str, typer.Option("--slurm-scheduler-name", metavar="NAME", help="The schedulerName of pods that Slurm places.")
    ] = "slurm-bridge-scheduler",
    managed_namespaces: Annotated[
        list[str] | None,
        typer.Option(
            "--managed-namespace",
            metavar="NAME",
            help="Let Slurm also place the default scheduler's pods in this namespace; may be repeated. [all]",
        ),
    ] = None,
    scheduler_users: Annotated[
        list[str] | None,
        typer.Option(
            "--scheduler-user", metavar="USER", help="A user that may mark pods as placed by Slurm; may be repeated."
        ),
    ] = None,
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "0.0.0.0",  # noqa: S104
    tls_port: Annotated[
        int, typer.Option("--tls-port", min=0, max=65535, help="The port for API servers; 0 means any free port.")
    ] = 8443,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="The port for metrics and probes; 0 means any free port.")
    ] = 8080,
    service: Annotated[str, typer.Option("--service", help="The Service of this webhook.")] = "fluence-webhook",
    namespace: Annotated[
        str, typer.Option("--namespace", help="The namespace of the Service and the Secret.")
    ] = "kube-system",
    secret: Annotated[
        str, typer.Option("--secret", help="The Secret with CA and certificate.")
    ] = "fluence-webhook-tls",  # noqa: S107
    configuration: Annotated[
        str, typer.Option("--configuration", help="The MutatingWebhookConfiguration to patch.")
    ] = "fluence-webhook",
    dns_names: Annotated[
        list[str] | None,
        typer.Option("--dns-name", metavar="NAME", help="A further host or IP for the certificate; may be repeated."),
    ] = None,
    check_interval: Annotated[
        float, typer.Option("--check-interval", min=0.1, max=86400, help="Seconds between checks of the certificate.")
    ] = 60.0,
    tls_cert: Annotated[
        str | None,
        typer.Option(
            "--tls-cert", metavar="FILE", help="Serve this certificate; do not create one or patch the configuration."
        ),
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option("--tls-key", metavar="FILE", help="The key of that certificate.")
    ] = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    log_level: LogLevelOption = LogLevel.INFO,
    log_format: LogFormatOption = None,
) -> int:
    """Inject the device environment into new pods, until SIGTERM. SIGUSR1 writes its stacks to standard error.

    Examples:
      fluence webhook --resources resources.yaml
      fluence webhook --handlers fluxion,gang --tls-cert tls.crt --tls-key tls.key
    """
    import asyncio
    import sys

    require("the webhook", "cryptography", requirement="fluence-scheduler[webhook]")
    from fluence_plugins.env_injection.webhook import WebhookOptions, serve
    from session_scheduler.sdk.logs import log_to_stderr

    options = WebhookOptions(
        handlers=_words(handlers),
        scheduler_names=frozenset(_checked("--scheduler-name", name) for name in scheduler_names or ["fluence"]),
        resources=resources,
        sidecar_image=sidecar_image,
        sidecar_as_root=sidecar_as_root,
        go_compatible=go_compatible,
        slurm_scheduler_name=_checked("--slurm-scheduler-name", slurm_scheduler_name),
        managed_namespaces=frozenset(_checked("--managed-namespace", name) for name in managed_namespaces or ()),
        scheduler_users=frozenset(scheduler_users or ()),
        host=host,
        tls_port=tls_port,
        port=port,
        service=_checked("--service", service),
        namespace=_checked("--namespace", namespace),
        secret=_checked("--secret", secret),
        configuration=_checked("--configuration", configuration),
        dns_names=tuple(_checked("--dns-name", name) for name in dns_names or ()),
        check_seconds=check_interval,
        files=_files(tls_cert, tls_key),
        kubeconfig=kubeconfig,
        context=context,
    )
    form = log_format or (LogFormat.CONSOLE if sys.stderr.isatty() else LogFormat.JSON)
    log_to_stderr(log_level, form.value)
    return asyncio.run(serve(options))


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in (each.strip() for each in text.split(",")) if word)


def _checked(option: str, name: str) -> str:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        if not _DNS_NAME.fullmatch(name):
            raise InputError(
                f"{option}: {name!r} is not a valid DNS name; use lower-case letters, digits, - and ."
            ) from None
    return name


def _files(certificate: str | None, key: str | None) -> tuple[str, str] | None:
    if certificate and key:
        return certificate, key
    if certificate or key:
        raise InputError("--tls-cert and --tls-key: set both or neither")
    return None
