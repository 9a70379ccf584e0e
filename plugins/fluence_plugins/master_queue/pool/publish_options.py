"""Validates the options of `fluence pool publish`, and runs the command."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final

from fluence_plugins.master_queue.amounts import RESOURCES, amount, amount_text
from fluence_plugins.master_queue.errors import ConnectionFailedError
from fluence_plugins.master_queue.names import is_dns_label, is_subject
from fluence_plugins.master_queue.nats.addresses import server_of
from fluence_plugins.master_queue.nats.settings import MOST_SERVERS, ConnectorSettings, Tls
from fluence_plugins.master_queue.pool.capacity import Part, capacity, lesser
from fluence_plugins.master_queue.pool.publisher import Pool, Publisher, Quotas, message
from session_scheduler.errors import InputError, plain, shown
from session_scheduler.model.quantity import QuantityError, billionths
from session_scheduler.sdk.dynamic_client import ClusterError, KubeApi, connect
from session_scheduler.sdk.signals import stop_on_signals

FAILED: Final = 1
"""The exit status of --once if nothing was published."""


@dataclass(frozen=True, slots=True)
class Secrets:
    """The files with the credentials for a NATS server."""

    credentials: Path | None = None
    nkey: Path | None = None
    user: Path | None = None
    password: Path | None = None
    token: Path | None = None
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command line."""

    pool: str
    subject: str
    servers: tuple[str, ...] = ()
    secrets: Secrets = Secrets()
    quota: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    taints: tuple[str, ...] = ()
    from_cluster: bool = False
    kubeconfig: str | None = None
    """The cluster's kubeconfig; None for $KUBECONFIG, ~/.kube/config or the pod's account."""
    context: str | None = None
    selector: str | None = None
    own: tuple[str, ...] = ()
    tolerated: tuple[str, ...] = ()
    every: float = 30.0
    once: bool = False
    dry_run: bool = False


async def publish_pool(options: Options) -> int:
    """Publish until SIGTERM, or once. Returns the exit status. Raises InputError."""
    given = quotas_of(options)
    subject = subject_of(options)
    _check(given, options)
    settings = None if options.dry_run and not options.servers else settings_of(options)
    async with AsyncExitStack() as stack:
        api = None
        if options.from_cluster:
            api = await stack.enter_async_context(await connect(options.kubeconfig, options.context))
        quotas = quotas_from(api, options, given)
        if options.dry_run or settings is None:
            sys.stdout.write(message(await quotas(), options.labels, options.taints).decode() + "\n")
            return 0
        publisher = Publisher(Pool(settings, subject, quotas, options.labels, options.taints), options.every)
        if options.once:
            return await _once(publisher)
        with stop_on_signals() as stop:
            await publisher.run(stop)
    return 0


def _check(given: Mapping[str, str], options: Options) -> None:
    """Validate the message before any connection is opened. Raises InputError."""
    try:
        message(given, options.labels, options.taints)
    except InputError as error:
        raise InputError(*(f"--{line.replace('s[', '[', 1)}" for line in error.messages)) from None


async def _once(publisher: Publisher) -> int:
    try:
        await publisher.once()
    except (ConnectionFailedError, ClusterError) as error:
        print(f"fluence: nothing was published: {error}", file=sys.stderr)
        return FAILED
    return 0


def quotas_from(api: KubeApi | None, options: Options, given: Mapping[str, str]) -> Quotas:
    """The function that returns the pool's quotas: measured in the cluster, given by --quota, or the lower of the
    two."""
    part = Part(options.selector or "", frozenset(options.own), frozenset(options.tolerated))

    async def found() -> Mapping[str, str]:
        return given if api is None else lesser(await capacity(api, part), given)

    return found


# ------------------------------------------------------------------ validation


def subject_of(options: Options) -> str:
    """The subject that the pool publishes to. Raises InputError."""
    if not is_dns_label(options.pool):
        what = "use at most 63 characters (a-z, 0-9 and -), with no - at the start or end"
        raise InputError(f"--pool: {shown(options.pool)} is not a valid pool name; {what}")
    if not is_subject(options.subject):
        what = "write words separated by ., without * and >"
        raise InputError(f"--subject: {shown(options.subject)} is not a valid subject; {what}")
    return f"{options.subject}.{options.pool}"


def quotas_of(options: Options) -> dict[str, str]:
    """The quotas of --quota, in the API server's form. Raises InputError with a line for each invalid one."""
    if not options.quota and not options.from_cluster:
        raise InputError(
            "--quota is missing; pass --quota, such as cpu=8, or --from-kubeconfig FILE to "
            "measure the pool's own cluster"
        )
    ignored = {"--context": options.context, "--selector": options.selector, "--for": options.own,
               "--tolerate": options.tolerated}  # fmt: skip
    if not options.from_cluster and (wrong := [name for name, value in ignored.items() if value]):
        raise InputError(
            f"{', '.join(wrong)}: applies only to a cluster; add --from-kubeconfig FILE, or remove the option"
        )
    found: dict[str, str] = {}
    problems: list[str] = []
    for text in options.quota:
        resource, equals, value = text.partition("=")
        if not equals:
            problems.append(f"--quota: {shown(text)} has no '='; write RESOURCE=AMOUNT, such as memory=32Gi")
        elif resource not in RESOURCES:
            problems.append(f"--quota: {shown(resource)}: unknown resource; use one of {', '.join(RESOURCES)}")
        elif resource in found:
            problems.append(f"--quota: {resource} is given twice; write each resource once")
        else:
            try:
                thousandths = amount(resource, value)
            except QuantityError as error:
                problems.append(f"--quota: {resource}: {error}")
                continue
            if thousandths * 10**6 != billionths(value):
                unit = "thousandths of a core" if resource == "cpu" else "whole numbers"
                problems.append(f"--quota: {resource}: {shown(value)} is too precise; use {unit}")
            found[resource] = amount_text(resource, thousandths)
    if problems:
        raise InputError(*problems)
    return found


def settings_of(options: Options) -> ConnectorSettings:
    """The settings of the connection. Raises InputError, which shows no address."""
    servers, secrets = options.servers, options.secrets
    if not 1 <= len(servers) <= MOST_SERVERS:
        raise InputError(f"--server: expected 1 to {MOST_SERVERS} servers, got {len(servers)}; write nats://host:4222")
    parsed = [server_of(one) for one in servers]
    if wrong := [f"--server: {one}" for one in parsed if isinstance(one, str)]:
        raise InputError(*wrong)
    _together("--user-file", secrets.user, "--password-file", secrets.password)
    _together("--tls-cert", secrets.tls_cert, "--tls-key", secrets.tls_key)
    in_address = any(not isinstance(one, str) and one.has_user for one in parsed)
    ways = {"--credentials": secrets.credentials, "--nkey": secrets.nkey, "--user-file": secrets.user,
            "--token-file": secrets.token, "a user or token in --server": in_address or None}  # fmt: skip
    if len(used := [name for name, value in ways.items() if value]) > 1:
        raise InputError(f"{', '.join(used)}: use only one way to authenticate")
    tls = Tls(ca_file=_text(secrets.tls_ca), cert_file=_text(secrets.tls_cert), key_file=_text(secrets.tls_key))
    if tls != Tls() and any(not isinstance(one, str) and one.scheme == "ws" for one in parsed):
        raise InputError("--server: ws:// has no TLS; write wss://, or remove --tls-ca, --tls-cert and --tls-key")
    for one in astuple(secrets):
        if one is not None and not os.path.isfile(one):
            raise InputError(f"{plain(str(one))}: file not found; name an existing file")
    return ConnectorSettings(
        servers=servers,
        user_file=_text(secrets.user),
        password_file=_text(secrets.password),
        token_file=_text(secrets.token),
        nkey_seed_file=_text(secrets.nkey),
        credentials_file=_text(secrets.credentials),
        tls=tls if tls != Tls() else None,
    )


def _together(first: str, one: Path | None, second: str, other: Path | None) -> None:
    if (one is None) != (other is None):
        raise InputError(
            f"{second if other is None else first}: is missing; pass both {first} and {second}, or neither"
        )


def _text(file: Path | None) -> str | None:
    return None if file is None else str(file)
