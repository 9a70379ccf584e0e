"""The proxy's faults: each does what its description says."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

import pytest
import yaml

from .awaiting import until
from .harness import ADMIN, ControlPlane
from .invariants import Manifest
from .proxy import Fault, Proxy

MAPS = "/api/v1/namespaces/default/configmaps"
CUT = (ConnectionResetError, http.client.IncompleteRead)
LOST = (http.client.RemoteDisconnected, ConnectionResetError)


class Client:
    """Sends requests to the proxy as administrator."""

    def __init__(self, plane: ControlPlane, proxy: Proxy) -> None:
        users = yaml.safe_load(plane.kubeconfig(ADMIN).read_text())["users"]
        self._headers = {"Authorization": f"Bearer {users[0]['user']['token']}", "Content-Type": "application/json"}
        self._proxy = proxy

    @contextmanager
    def sent(self, method: str, path: str, body: object = None) -> Iterator[http.client.HTTPConnection]:
        """Send a request, and close the connection at the end."""
        connection = http.client.HTTPConnection("127.0.0.1", self._proxy.port, timeout=10)
        try:
            connection.request(method, path, json.dumps(body) if body else None, self._headers)
            yield connection
        finally:
            connection.close()

    @contextmanager
    def open(self, method: str, path: str, body: object = None) -> Iterator[http.client.HTTPResponse]:
        with self.sent(method, path, body) as connection, connection.getresponse() as answer:
            yield answer

    def send(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        with self.open(method, path, body) as answer:
            return answer.status, json.loads(answer.read())

    def make(self, name: str) -> tuple[int, Any]:
        return self.send("POST", MAPS, config_map(name))


def config_map(name: str) -> Manifest:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}


@pytest.fixture
def proxy(control_plane: ControlPlane) -> Iterator[Proxy]:
    with Proxy(control_plane.server, control_plane.ca_file) as proxy:
        yield proxy


@pytest.fixture
def client(control_plane: ControlPlane, proxy: Proxy) -> Client:
    return Client(control_plane, proxy)


@pytest.fixture
def name(request: pytest.FixtureRequest, control_plane: ControlPlane) -> Iterator[str]:
    """A unique name."""
    name = f"made-{time.monotonic_ns()}"
    yield name
    control_plane.request("DELETE", f"{MAPS}/{name}")


def exists(plane: ControlPlane, name: str) -> bool:
    return plane.request("GET", f"{MAPS}/{name}")[0] == HTTPStatus.OK


def test_what_has_no_rule_goes_through_and_is_logged(
    control_plane: ControlPlane, proxy: Proxy, client: Client, name: str
) -> None:
    assert client.make(name)[0] == HTTPStatus.CREATED
    assert client.send("GET", f"{MAPS}/{name}")[1]["metadata"]["name"] == name
    (write,) = proxy.writes
    assert (write.number, write.method, write.path, write.outcome) == (1, "POST", MAPS, "201")
    assert name in write.body
    assert "POST" in proxy.report()


def test_leases_and_events_are_not_counted(proxy: Proxy, client: Client, name: str) -> None:
    fault = proxy.at(1, Fault.ERROR)
    client.send("POST", "/apis/coordination.k8s.io/v1/namespaces/default/leases", {"metadata": {"name": name}})
    client.send("POST", "/apis/events.k8s.io/v1/namespaces/default/events", {"metadata": {"name": name}})
    assert proxy.count == 0
    assert not fault.struck.is_set()


@pytest.mark.parametrize(
    ("fault", "arrives"), [(Fault.DROP_BEFORE, False), (Fault.DROP_AFTER, True)], ids=lambda value: str(value)
)
def test_a_dropped_write_has_no_answer(
    control_plane: ControlPlane, proxy: Proxy, client: Client, name: str, fault: Fault, arrives: bool
) -> None:
    rule = proxy.at(2, fault)
    client.send("DELETE", f"{MAPS}/{name}")
    with pytest.raises(LOST):
        client.make(name)
    assert rule.struck.is_set()
    assert exists(control_plane, name) is arrives
    assert client.send("GET", f"{MAPS}/{name}")[0] == (HTTPStatus.OK if arrives else HTTPStatus.NOT_FOUND)


@pytest.mark.parametrize("status", [409, 429, 500, 503])
@pytest.mark.parametrize(("fault", "arrives"), [(Fault.ERROR, False), (Fault.ERROR_AFTER, True)])
def test_an_error_is_answered_whatever_became_of_the_write(
    control_plane: ControlPlane, proxy: Proxy, client: Client, name: str, fault: Fault, arrives: bool, status: int
) -> None:
    proxy.at(1, fault, status=status)
    answered, body = client.make(name)
    assert (answered, body["code"]) == (status, status)
    assert exists(control_plane, name) is arrives


@pytest.mark.parametrize(("fault", "status"), [(Fault.DUPLICATE, 409), (Fault.DUPLICATE_FIRST, 201)])
def test_a_duplicated_write_is_forwarded_twice(proxy: Proxy, client: Client, name: str, fault: Fault,
                                               status: int) -> None:  # fmt: skip
    proxy.at(1, fault)
    assert client.make(name)[0] == status
    assert proxy.writes[0].outcome == f"{fault.value} 201 409"


def test_a_held_write_arrives_once_it_is_released_though_its_sender_is_gone(
    control_plane: ControlPlane, proxy: Proxy, client: Client, name: str
) -> None:
    rule = proxy.at(1, Fault.HOLD)
    with client.sent("POST", MAPS, config_map(name)):
        assert rule.struck.wait(10)
    assert not exists(control_plane, name)
    proxy.release(rule)
    control_plane.wait_for(f"{MAPS}/{name}", lambda answer: answer.get("code") is None)


def test_the_answer_of_a_write_is_held(control_plane: ControlPlane, proxy: Proxy, client: Client, name: str) -> None:
    rule = proxy.at(1, Fault.HOLD_AFTER)
    answers: list[int] = []
    thread = threading.Thread(target=lambda: answers.append(client.make(name)[0]))
    thread.start()
    assert rule.struck.wait(10)
    assert exists(control_plane, name)
    assert not answers
    proxy.release(rule)
    thread.join(10)
    assert answers == [HTTPStatus.CREATED]


@pytest.mark.parametrize(("fault", "arrives"), [(Fault.CALL_BEFORE, False), (Fault.CALL_AFTER, True)])
def test_nothing_is_forwarded_after_the_call_of_what_was_sent_before_it(
    control_plane: ControlPlane, proxy: Proxy, client: Client, name: str, fault: Fault, arrives: bool
) -> None:
    proxy.in_order = True
    called = threading.Event()
    others: list[threading.Thread] = []

    def call() -> None:  # while it runs, the client sends three more
        others.extend(threading.Thread(target=lost, args=(f"{name}-{number}",)) for number in range(3))
        for other in others:
            other.start()
        deadline = time.monotonic() + 10
        while proxy.count < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
        called.set()

    def lost(other: str) -> None:
        with pytest.raises(LOST):
            client.make(other)

    proxy.at(1, fault, call=call)
    with pytest.raises(LOST):
        client.make(name)
    for other in others:
        other.join(10)
    assert called.is_set()
    until("the end of the others", lambda: all(write.outcome != "in flight" for write in proxy.writes))
    assert exists(control_plane, name) is arrives
    assert not any(exists(control_plane, f"{name}-{number}") for number in range(3))
    assert [write.outcome for write in proxy.writes[1:]] == ["lost with its sender"] * 3


def test_a_rule_counts_only_what_it_is_about(control_plane: ControlPlane, proxy: Proxy, client: Client,
                                             name: str) -> None:  # fmt: skip
    rule = proxy.at(1, Fault.DROP_BEFORE, where=lambda method, path: method == "DELETE")
    assert client.make(name)[0] == HTTPStatus.CREATED
    with pytest.raises(LOST):
        client.send("DELETE", f"{MAPS}/{name}")
    assert rule.struck.is_set()
    assert exists(control_plane, name)


def test_watches_pass_event_by_event_and_can_be_cut(
    control_plane: ControlPlane, proxy: Proxy, client: Client, name: str
) -> None:
    start = client.send("GET", MAPS)[1]["metadata"]["resourceVersion"]
    with client.open("GET", f"{MAPS}?watch=1&resourceVersion={start}") as watch:
        client.make(name)
        assert json.loads(watch.readline())["object"]["metadata"]["name"] == name
        assert proxy.cut_watches() == 1
        with pytest.raises(CUT):
            watch.read()
    assert proxy.watches_cut == 1


def test_watches_are_cut_at_random_until_that_is_ended(proxy: Proxy, client: Client) -> None:
    with client.open("GET", f"{MAPS}?watch=1") as watch:
        proxy.cut_watches_at_random(seed=1, mean_seconds=0.01)
        with pytest.raises(CUT):
            watch.read()
    proxy.stop_cutting()
    cut = proxy.watches_cut
    with client.open("GET", f"{MAPS}?watch=1&timeoutSeconds=1") as watch:
        watch.read()  # until it ends
    assert proxy.watches_cut == cut


def test_connections_are_refused_for_a_time(proxy: Proxy, client: Client) -> None:
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        client.send("GET", MAPS)
    proxy.accept()
    assert client.send("GET", MAPS)[0] == HTTPStatus.OK
