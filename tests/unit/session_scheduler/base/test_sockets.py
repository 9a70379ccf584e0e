"""Sockets for the addresses that administrators give."""

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from session_scheduler.base.sockets import bound
from session_scheduler.errors import InputError

V4 = "127.0.0.1"


@pytest.fixture
def taken() -> Iterator[int]:
    """A port with a listener."""
    with closing(bound(V4, 0, queue=1)) as first:
        yield first.getsockname()[1]


def test_every_ipv6_address_is_every_ipv4_address_too() -> None:
    with closing(bound("::", 0, queue=1)) as made:
        port = made.getsockname()[1]
        socket.create_connection((V4, port), timeout=10).close()


def test_nobody_can_connect_before_it_listens() -> None:
    with closing(bound(V4, 0)) as made:
        address = made.getsockname()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=10)
        made.listen()
        socket.create_connection(address, timeout=10).close()


def test_a_name_is_taken_at_the_first_of_its_addresses_that_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0)) for host in ("192.0.2.1", V4)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with closing(bound("both.example.com", 0)) as made:
        assert made.getsockname()[0] == V4


def test_one_that_is_in_use_is_named_with_the_field_and_a_remedy(taken: int) -> None:
    with pytest.raises(InputError, match=rf"^--tls-port: {V4}:{taken} is in use; choose another port [^\n]*$"):
        bound(V4, taken, ("--host", "--tls-port"), queue=1)


@pytest.mark.parametrize("host", ["192.0.2.1", "a..b", "no such host"])
def test_one_that_is_not_of_this_machine_is_named(host: str) -> None:
    with pytest.raises(InputError, match=rf"^--host: cannot bind {host}:80 \([^\n]+\); give an address of this"):
        bound(host, 80)
