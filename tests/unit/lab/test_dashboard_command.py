"""The command `fluence dashboard`: its options, files and the port that kubectl forwards."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from fluence_lab.dashboard import run
from fluence_lab.dashboard.commands import _address, _url
from fluence_lab.dashboard.pages import Observes
from fluence_lab.dashboard.port_forward import _service, open_in_cluster
from fluence_lab.dashboard.results import ResultObserver
from fluence_lab.dashboard.run import Options, is_loopback, opened, simulation
from fluence_lab.panels import Panel
from session_scheduler import cli
from session_scheduler.errors import InputError
from session_scheduler.sdk import dynamic_client

KUBECTL = """#!/bin/sh
echo "$@" >> "$CALLS"
case "$*" in
  *"get services"*) echo "$SERVICES" ;;
  *port-forward*)
    sleep 60 &
    trap 'kill $!; echo ended >> "$CALLS"; exit 0' TERM
    echo "Forwarding from 127.0.0.1:8090 -> 8090"
    wait ;;
esac
"""
QUICKSTART = [
    Path(__file__).parents[3] / "examples/01-quickstart" / f"{name}.yaml" for name in ("cluster", "workloads")
]
FOUND = {"items": [{"metadata": {"namespace": "kube-system", "name": "fluence-dashboard"}}]}


@pytest.mark.parametrize(
    ("bind", "address"),
    [("127.0.0.1:8090", ("127.0.0.1", 8090)), ("[::1]:0", ("::1", 0)), ("localhost:80", ("localhost", 80))],
)
def test_an_address_has_a_host_and_a_port(bind: str, address: tuple[str, int]) -> None:
    assert _address(bind) == address


@pytest.mark.parametrize("bind", ["8090", ":8090", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000"])
def test_another_address_is_refused(bind: str) -> None:
    with pytest.raises(InputError, match=r"expected ADDRESS:PORT, such as 127\.0\.0\.1:8090"):
        _address(bind)


def test_urls_are_of_http() -> None:
    assert _url("--prometheus", "https://prometheus:9090") == "https://prometheus:9090"
    with pytest.raises(InputError, match="--prometheus file:///etc/passwd: expected an address that starts with http"):
        _url("--prometheus", "file:///etc/passwd")


@pytest.mark.parametrize(("host", "loopback"), [("127.0.0.1", True), ("::1", True), ("localhost", True),
                                                ("0.0.0.0", False), ("::", False), ("example.com", False)])  # fmt: skip
def test_only_this_machine_reaches_a_loopback_address(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


@pytest.mark.parametrize("option", ["--kubeconfig", "--context"])
def test_files_are_not_shown_together_with_a_cluster(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["dashboard", "cluster.yaml", option, "x"]) == 2
    assert capsys.readouterr().err == (
        f"fluence: {option}: the dashboard shows either FILEs or a cluster; remove one of the two\n"
    )


def test_a_saved_simulation_is_recognised(tmp_path: Path) -> None:
    result, snapshot, broken = tmp_path / "result.json", tmp_path / "snapshot.json", tmp_path / "broken.json"
    result.write_text(json.dumps({"pods": [], "summary": {}}))
    snapshot.write_text(json.dumps({"kind": "Snapshot", "pods": [], "summary": {}}))
    broken.write_text("{")
    deep = tmp_path / "deep.json"
    deep.write_text('{"pods":' * 100_000)
    assert simulation(str(result)) == {"pods": [], "summary": {}}
    assert [simulation(str(path)) for path in (snapshot, broken, deep, tmp_path / "none.json", tmp_path)] == [None] * 5


def opening(*files: Path, simulate: bool = False) -> tuple[Any, list[str], str]:
    async def opened_now() -> tuple[Any, list[str], str]:
        async with AsyncExitStack() as stack:
            observer, panels, note = await opened(Options(files=[*map(str, files)], simulate=simulate), stack)
            return observer.observe(), [panel.name for panel in panels], note

    return asyncio.run(opened_now())


def test_files_are_shown_as_they_are_and_the_note_names_the_option() -> None:
    observed, pages, note = opening(*QUICKSTART)
    assert set(observed.pods.nodes.tolist()) == {-1}
    assert "simulated" not in pages
    assert note == "Pending pods were not scheduled; use --simulate to schedule them in memory."
    assert opening(QUICKSTART[0])[2] == ""


def test_with_simulate_files_are_shown_after_the_simulation_with_its_page() -> None:
    observed, pages, note = opening(*QUICKSTART, simulate=True)
    assert (observed.pods.nodes >= 0).sum() > 0
    assert pages[:2] == ["simulated", "overview"]
    assert note == "The pages show the cluster after the simulation."


def test_a_saved_simulation_is_one_page_and_is_not_simulated_again(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    result.write_text(json.dumps({"pods": [], "summary": {}}))
    assert opening(result)[1:] == (["simulated"], "")
    with pytest.raises(InputError, match=r"--simulate: .*result.json is the result of a simulation; remove the option"):
        opening(result, simulate=True)


def test_simulate_needs_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["dashboard", "--simulate"]) == 2
    error = capsys.readouterr().err
    assert error == "fluence: --simulate needs FILEs; name manifests, directories or a snapshot\n"


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kubectl that records its calls."""
    program = tmp_path / "kubectl"
    program.write_text(KUBECTL)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("SERVICES", json.dumps(FOUND))
    return tmp_path / "calls"


def test_kubectl_fluence_forwards_a_port_and_ends_kubectl(kubectl: Path) -> None:
    code = """
import asyncio
from fluence_lab.dashboard.port_forward import open_in_cluster
raise SystemExit(asyncio.run(open_in_cluster("some file", "; rm -rf /", "127.0.0.1", 8090)))
"""
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == (
            "fluence dashboard: open http://127.0.0.1:8090 and sign in with a token for the cluster "
            "(Service kube-system/fluence-dashboard)\n"
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    listed, forwarded, ended = kubectl.read_text().splitlines()
    before = "--kubeconfig some file --context ; rm -rf / "
    assert listed == (
        f"{before}get services --all-namespaces --selector app.kubernetes.io/name=fluence-dashboard --output json"
    )
    assert forwarded == (
        f"{before}port-forward --namespace kube-system --address 127.0.0.1 service/fluence-dashboard 8090:http"
    )
    assert ended == "ended"


def test_without_a_service_the_command_says_what_to_apply(kubectl: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICES", json.dumps({"items": []}))
    with pytest.raises(InputError, match=r"no dashboard runs in this cluster; apply deploy/options/dashboard.yaml"):
        asyncio.run(open_in_cluster(None, None, "127.0.0.1", 8090))


def service(namespace: str, name: str = "fluence-dashboard") -> dict[str, object]:
    return {"metadata": {"namespace": namespace, "name": name}}


def test_a_service_with_the_label_in_another_namespace_does_not_receive_the_token(
    kubectl: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICES", json.dumps({"items": [service("a"), service("kube-system"), service("z")]}))
    assert asyncio.run(_service(["kubectl"])) == ("kube-system", "fluence-dashboard")
    monkeypatch.setenv("SERVICES", json.dumps({"items": [service("fluence", "mine")]}))
    assert asyncio.run(_service(["kubectl"])) == ("fluence", "mine")
    monkeypatch.setenv("SERVICES", json.dumps({"items": [service("fluence"), service("a")]}))
    with pytest.raises(InputError) as error:
        asyncio.run(_service(["kubectl"]))
    assert str(error.value) == (
        "several Services have the label app.kubernetes.io/name=fluence-dashboard (a/fluence-dashboard, "
        "fluence/fluence-dashboard); run kubectl port-forward for the one that you trust, because it receives "
        "your token"
    )


def test_without_kubectl_the_command_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="kubectl is not on the PATH"):
        asyncio.run(open_in_cluster(None, None, "127.0.0.1", 8090))


async def test_the_command_fetches_for_panels_of_a_live_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    stop, api = asyncio.Event(), asyncio.Event()
    asked: list[object] = []

    async def fetch(client: object) -> object:
        asked.append(client)
        stop.set()
        return None

    async def with_pools(_options: Options, _stack: AsyncExitStack) -> tuple[Observes, list[Panel], str]:
        return ResultObserver("a test"), [Panel("page", "Page", lambda _: None, fetch=fetch)], ""

    @asynccontextmanager
    async def client() -> AsyncIterator[object]:
        yield api
        asked.append("closed")

    async def connect(kubeconfig: str | None, context: str | None) -> object:
        asked.append((kubeconfig, context))
        return client()

    monkeypatch.setattr(run, "opened", with_pools)
    monkeypatch.setattr(run, "stop_on_signals", lambda: nullcontext(stop))
    monkeypatch.setattr(dynamic_client, "connect", connect)
    async with asyncio.timeout(10):
        assert await run.serve(Options(kubeconfig="file", context="other", port=0)) == 0
    assert asked == [("file", "other"), api, "closed"]
