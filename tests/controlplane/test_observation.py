"""An observer of a real API server: it shows what the API says while `fluence run` decides, and writes nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fluence_lab import connect
from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.observation.live import follow
from session_scheduler.observation.observer import Observer
from session_scheduler.observation.values import Observed

from .awaiting import until
from .conftest import new_control_plane
from .harness import ControlPlane
from .proxy import Proxy
from .scheduler_process import SchedulerProcess, kubeconfig_for

PATIENCE = 30.0
ENTIRE = """
import asyncio, sys
from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.observation.live import follow
from session_scheduler.sdk.signals import stop_on_signals

async def main():
    with stop_on_signals() as stop:
        async with follow(SchedulerConfig(), kubeconfig=sys.argv[1]) as observer:
            print("observed", len(observer.observe().nodes.names), flush=True)
            await stop.wait()

asyncio.run(main())
print("ended", flush=True)
"""


@pytest.fixture(scope="module")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A separate control plane, because an observer sees all of its objects."""
    with new_control_plane(tmp_path_factory.mktemp("observed")) as plane:
        yield plane


@pytest.fixture
def proxy(control_plane: ControlPlane) -> Iterator[Proxy]:
    with Proxy(control_plane.server, control_plane.ca_file) as proxy:
        yield proxy


def create_pod(plane: ControlPlane, namespace: str, name: str, cpu: str, **spec: Any) -> None:
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}
    plane.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace},
                  "spec": {"schedulerName": "fluence", "containers": [container], **spec}})  # fmt: skip


async def observed(observer: Observer, wanted: Callable[[Observed], object]) -> Observed:
    """The first observation for which `wanted` holds."""
    async with asyncio.timeout(PATIENCE):
        while not wanted(seen := observer.observe()):
            observer.changed.clear()
            await observer.changed.wait()
        return seen


async def called(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function that blocks, while the observer follows the cluster."""
    return await asyncio.to_thread(function, *arguments)


def by_pod(seen: Observed, namespace: str) -> dict[str, tuple[str, str | None]]:
    """The phase and node of each pod of a namespace, as the observer sees them."""
    return {
        key.partition("/")[2]: (phase, seen.nodes.names[node] if node >= 0 else None)
        for key, phase, node in zip(seen.pods.keys, seen.pods.phases, seen.pods.nodes.tolist(), strict=True)
        if key.startswith(f"{namespace}/")
    }


def of_api(plane: ControlPlane, namespace: str) -> dict[str, str | None]:
    items = plane.request("GET", f"/api/v1/namespaces/{namespace}/pods")[1]["items"]
    return {one["metadata"]["name"]: one["spec"].get("nodeName") for one in items}


async def test_an_observer_shows_what_the_api_says_and_writes_nothing(
    control_plane: ControlPlane, proxy: Proxy, tmp_path: Path
) -> None:
    plane, namespace = control_plane, control_plane.new_namespace()
    plane.new_node(f"{namespace}-a", cpu="4")
    create_pod(plane, namespace, "early", "1")
    reader = str(kubeconfig_for(plane, tmp_path, proxy.url))
    with ExitStack() as stack:
        async with follow(SchedulerConfig(), kubeconfig=reader) as observer:
            first = observer.observe()
            assert first.source == proxy.url
            assert by_pod(first, namespace) == {"early": ("Pending", None)}
            assert first.pods.reasons == ("not tried yet: no scheduler has reported why the pod waits",)

            scheduler = stack.enter_context(SchedulerProcess(tmp_path, kubeconfig_for(plane, tmp_path)))
            scheduler.start()
            await called(scheduler.wait_ready)
            create_pod(plane, namespace, "late", "1")
            create_pod(plane, namespace, "large", "3")
            want = {"early": ("Bound", f"{namespace}-a"), "late": ("Bound", f"{namespace}-a"),
                    "large": ("Pending", None)}  # fmt: skip
            seen = await observed(observer, lambda seen: by_pod(seen, namespace) == want and all(
                reason and "Insufficient cpu" in reason for reason in seen.pods.reasons[1:2]))  # fmt: skip
            assert {name: node for name, (_, node) in want.items()} == of_api(plane, namespace)
            assert seen.nodes.allocated[0, seen.nodes.resources.index("cpu")] == 2.0
            assert seen.nodes.pods.tolist() == [2]
            assert seen.queues[0]["allocated"]["cpu"] == "2"
            assert seen.version > first.version

            verdicts = await observer.verdicts(f"{namespace}/large")
            assert verdicts["nodes"][f"{namespace}-a"]["reason"] == "Insufficient cpu"

            plane.new_node(f"{namespace}-b", cpu="4")
            want["large"] = ("Bound", f"{namespace}-b")
            await observed(observer, lambda seen: by_pod(seen, namespace) == want)

            plane.request("DELETE", f"/api/v1/namespaces/{namespace}/pods/large", {"gracePeriodSeconds": 0})
            plane.request("DELETE", f"/api/v1/nodes/{namespace}-b")
            del want["large"]
            seen = await observed(observer, lambda seen: len(seen.nodes.names) == 1)
            seen = await observed(observer, lambda seen: by_pod(seen, namespace) == want)
            assert proxy.writes == []
    for name in ("early", "late"):
        plane.request("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}", {"gracePeriodSeconds": 0})
    plane.request("DELETE", f"/api/v1/nodes/{namespace}-a")


async def test_an_observer_survives_broken_watches_and_an_api_server_that_does_not_answer(
    control_plane: ControlPlane, proxy: Proxy, tmp_path: Path
) -> None:
    plane, namespace = control_plane, control_plane.new_namespace()
    async with follow(SchedulerConfig(), kubeconfig=str(kubeconfig_for(plane, tmp_path, proxy.url))) as observer:
        await called(until, "a watch", lambda: proxy.cut_watches() > 0)
        await called(proxy.refuse)
        create_pod(plane, namespace, "meanwhile", "1")
        before = observer.observe()
        await asyncio.sleep(0.3)
        assert observer.observe().pods is before.pods  # the last known state
        await called(proxy.accept)
        await observed(observer, lambda seen: by_pod(seen, namespace) == {"meanwhile": ("Pending", None)})
    plane.request("DELETE", f"/api/v1/namespaces/{namespace}/pods/meanwhile", {"gracePeriodSeconds": 0})


async def test_an_observer_without_permissions_retries_and_leaves_no_task_when_it_is_cancelled(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    outsider = str(kubeconfig_for(control_plane, tmp_path, user="outsider"))
    observer = follow(SchedulerConfig(), kubeconfig=outsider)
    with pytest.raises(TimeoutError):  # an administrator may grant the permissions meanwhile
        await asyncio.wait_for(observer.__aenter__(), 2.0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_a_notebook_connects_to_a_cluster_and_writes_nothing(
    control_plane: ControlPlane, proxy: Proxy, tmp_path: Path
) -> None:
    plane, namespace = control_plane, control_plane.new_namespace()
    plane.new_node(f"{namespace}-a", cpu="4")
    create_pod(plane, namespace, "p", "1")
    lab = connect(kubeconfig_for(plane, tmp_path, proxy.url))
    assert lab.nodes.index.tolist() == [f"{namespace}-a"]
    assert lab.run().decisions.loc[(namespace, "p"), "node"] == f"{namespace}-a"
    assert of_api(plane, namespace) == {"p": None}
    assert proxy.writes == []
    plane.request("DELETE", f"/api/v1/namespaces/{namespace}/pods/p", {"gracePeriodSeconds": 0})
    plane.request("DELETE", f"/api/v1/nodes/{namespace}-a")


def test_sigterm_ends_an_observer_at_once(control_plane: ControlPlane, tmp_path: Path) -> None:
    command = [sys.executable, "-c", ENTIRE, str(kubeconfig_for(control_plane, tmp_path))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "observed 0\n" in process.stdout  # after lines of the log
        os.kill(process.pid, signal.SIGTERM)
        rest, errors = process.communicate(timeout=PATIENCE)
    assert (rest, process.returncode) == ("ended\n", 0), errors
    assert "Traceback" not in errors
