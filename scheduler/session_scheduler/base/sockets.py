"""Listening sockets for the addresses in options and configurations. Public, as `sdk.sockets`.

asyncio by itself would let `::` accept IPv6 alone.
"""

from __future__ import annotations

import errno
import os
import socket
from contextlib import suppress

from session_scheduler.base.addresses import host_and_port
from session_scheduler.errors import InputError


def bound(host: str, port: int, fields: tuple[str, str] = ("--host", "--port"), *, queue: int = 0) -> socket.socket:
    """A socket bound to this address; `::` is every IPv4 and IPv6 address. Close it, or pass it to a server.

    `fields` are the names of host and port in messages. With a `queue` of connections the socket listens at once.
    Raises InputError.
    """
    try:
        return _first(host, port, queue)
    except (OSError, UnicodeError, OverflowError) as error:  # UnicodeError: an invalid host name
        raise InputError(_why_not(host_and_port(host, port), fields, error)) from error


def _first(host: str, port: int, queue: int) -> socket.socket:
    """Bind the first address of a name that can be bound."""
    *others, last = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, _, _, _, address in others:
        with suppress(OSError):
            return _made(family, address, queue)
    return _made(last[0], last[4], queue)


def _made(family: int, address: tuple[object, ...], queue: int) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        made.bind(address)
        if queue:
            made.listen(queue)
    except BaseException:
        made.close()
        raise
    return made


def _why_not(where: str, fields: tuple[str, str], error: Exception) -> str:
    host, port = fields
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EADDRINUSE:
        return (
            f"{port}: {where} is in use; choose another port (0 means any free port), or stop the process that uses it"
        )
    if number == errno.EACCES:
        return f"{port}: this user has no permission to bind {where}; choose port 1024 or higher"
    problem = os.strerror(number) if number and number > 0 else getattr(error, "strerror", None) or str(error)
    return f"{host}: cannot bind {where} ({problem}); give an address of this machine"
