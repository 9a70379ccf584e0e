"""The commands `fluence pool list` and `fluence pool publish`."""

from pathlib import Path
from typing import Annotated

import typer

from session_scheduler.sdk.command_options import Context, Kubeconfig, LogFormatOption, LogLevelOption
from session_scheduler.sdk.commands import Host, LogFormat, LogLevel, Output

pool = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="List remote pools, or publish the resources of a pool.\n\nExamples:\n  fluence pool list -o json",
)


@pool.command("list")
def list_pools(
    context: typer.Context,
    *,
    kubeconfig: Kubeconfig = None,
    kube_context: Context = None,
    output: Annotated[Output, typer.Option("-o", "--output", help="The output format.")] = Output.TABLE,
) -> None:
    """List the pools of all MasterQueues, with their used and lent resources, and the queues.

    Examples:
      fluence pool list
      fluence pool list --kubeconfig ~/.kube/config -o json
    """
    import asyncio
    import time

    from fluence_plugins.master_queue.pool.report import read
    from fluence_plugins.master_queue.pool.tables import parts
    from session_scheduler.sdk.dynamic_client import connect
    from session_scheduler.sdk.logs import log_to_stderr

    log_to_stderr()

    async def found() -> dict[str, object]:
        async with await connect(kubeconfig, kube_context) as api:
            return await read(api, time.time())

    host: Host = context.obj
    result = asyncio.run(found())
    if output is Output.TABLE:
        host.show(parts(result))
    else:
        host.write(result, output)


@pool.command()
def publish(
    *,
    pool_name: Annotated[
        str, typer.Option("--pool", metavar="NAME", help="The pool's name. Messages go to <subject>.<pool>.")
    ],
    subject: Annotated[str, typer.Option("--subject", metavar="SUBJECT", help="The natsSubject of the MasterQueue.")],
    servers: Annotated[
        list[str] | None,
        typer.Option(
            "--server",
            "--connector",
            metavar="URL",
            envvar="FLUENCE_NATS_SERVERS",
            help="nats://, tls://, ws:// or wss://host:port; may be repeated. If it includes a password, use the "
            "environment variable.",
        ),
    ] = None,
    quota: Annotated[
        list[str] | None,
        typer.Option(
            "--quota", metavar="RESOURCE=AMOUNT", help="The pool's limit, such as memory=32Gi; may be repeated."
        ),
    ] = None,
    from_kubeconfig: Annotated[
        str | None,
        typer.Option(
            "--from-kubeconfig",
            metavar="FILE",
            help="Publish the free capacity of the cluster that this file names.",
        ),
    ] = None,
    from_cluster: Annotated[
        bool,
        typer.Option(
            "--from-cluster",
            help="Publish the free capacity of the current cluster: the cluster that KUBECONFIG or ~/.kube/config "
            "names, or the cluster that this pod runs in.",
        ),
    ] = False,
    kube_context: Context = None,
    selector: Annotated[
        str | None,
        typer.Option("--selector", metavar="LABELS", help="Count only nodes with these labels, such as zone=a,!old."),
    ] = None,
    own: Annotated[
        list[str] | None,
        typer.Option(
            "--for",
            metavar="NAMESPACE",
            help="A namespace of the pool's pods: their requests are not subtracted; may be repeated.",
        ),
    ] = None,
    tolerate: Annotated[
        list[str] | None,
        typer.Option("--tolerate", metavar="KEY", help="A taint that the pool's pods tolerate; may be repeated."),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="KEY=VALUE", help="A label of the pool's flavor; may be repeated."),
    ] = None,
    taint: Annotated[
        list[str] | None,
        typer.Option("--taint", metavar="KEY=VALUE:EFFECT", help="A taint of the pool's flavor; may be repeated."),
    ] = None,
    every: Annotated[
        float,
        typer.Option(
            "--every", min=1, max=86400, metavar="SECONDS", help="The interval; it must be shorter than poolTimeout."
        ),
    ] = 30.0,
    once: Annotated[bool, typer.Option("--once", help="Publish one message; exit with status 1 on failure.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the message without publishing it.")] = False,
    credentials: Annotated[
        Path | None, typer.Option("--credentials", metavar="FILE", help="A .creds file with JWT and seed.")
    ] = None,
    nkey: Annotated[
        Path | None, typer.Option("--nkey", metavar="FILE", help="A file with the seed of an nkey.")
    ] = None,
    user_file: Annotated[
        Path | None, typer.Option("--user-file", metavar="FILE", help="A file with the user's name.")
    ] = None,
    password_file: Annotated[
        Path | None, typer.Option("--password-file", metavar="FILE", help="A file with the user's password.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", metavar="FILE", help="A file with a token.")
    ] = None,
    tls_ca: Annotated[
        Path | None, typer.Option("--tls-ca", metavar="FILE", help="Require TLS, and trust only these certificates.")
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", metavar="FILE", help="Require TLS, with this client certificate.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", metavar="FILE", help="The key of that certificate.")
    ] = None,
    log_level: LogLevelOption = LogLevel.INFO,
    log_format: LogFormatOption = None,
) -> int:
    """Publish the resources of a pool to a MasterQueue, until SIGTERM.

    --quota gives the resources; --from-kubeconfig or --from-cluster measures them in the pool's own cluster. With both,
    the lesser amount counts.

    Examples:
      fluence pool publish --pool site-a --subject pools --server tls://nats.example.com --quota cpu=64 --quota pods=100
      fluence pool publish --pool site-a --subject pools --from-cluster --once
    """
    import asyncio
    import sys

    from fluence_plugins.master_queue.pool.publish_options import Options, Secrets, publish_pool
    from session_scheduler.sdk.logs import log_to_stderr

    form = log_format or (LogFormat.CONSOLE if sys.stderr.isatty() else LogFormat.JSON)
    log_to_stderr(log_level, form.value)
    options = Options(
        pool=pool_name,
        subject=subject,
        servers=tuple(servers or ()),
        secrets=Secrets(credentials, nkey, user_file, password_file, token_file, tls_ca, tls_cert, tls_key),
        quota=tuple(quota or ()),
        labels=tuple(label or ()),
        taints=tuple(taint or ()),
        from_cluster=from_cluster or from_kubeconfig is not None,
        kubeconfig=from_kubeconfig,
        context=kube_context,
        selector=selector,
        own=tuple(own or ()),
        tolerated=tuple(tolerate or ()),
        every=every,
        once=once,
        dry_run=dry_run,
    )
    return asyncio.run(publish_pool(options))
