"""Writes what a scheduler writes about each unbound pod, without any decision: the limit for a scheduler in Python.

`python -m tests.controlplane.raw_writer KUBECONFIG NAMESPACE WHAT` lists nodes and pods once, then sends the writes, as
many at once as the scheduler's default. WHAT is `bindings` (nodes in turn), or `reports` (the condition of a pod that
fits on no node). Then it waits for a signal, so that its usage can be read.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import yaml

_AT_ONCE = 64
_JSON = "application/json"
_STRATEGIC_PATCH = "application/strategic-merge-patch+json"

Write = tuple[str, str, str, bytes]
"""Method, path after that of the pods, content type and body."""


def _bindings(pods: list[Any], nodes: list[str]) -> Iterator[Write]:
    for pod, node in zip(pods, itertools.cycle(nodes), strict=False):
        of = {key: pod["metadata"][key] for key in ("namespace", "name", "uid", "resourceVersion")}
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": of, "target": target}
        yield "POST", f"{of['name']}/binding", _JSON, json.dumps(body).encode()


def _reports(pods: list[Any], nodes: list[str]) -> Iterator[Write]:
    """Return patches with kube-scheduler's message for pods without room."""
    none = f"0/{len(nodes)} nodes are available: {len(nodes)} "
    message = f"{none}Insufficient cpu. preemption: {none}No preemption victims found for incoming pod."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message,
                 "lastTransitionTime": "2026-01-01T00:00:00Z"}  # fmt: skip
    for pod in pods:
        metadata = {"resourceVersion": pod["metadata"]["resourceVersion"]}
        body = {"metadata": metadata, "status": {"conditions": [condition]}}
        yield "PATCH", f"{pod['metadata']['name']}/status", _STRATEGIC_PATCH, json.dumps(body).encode()


_WRITES = {"bindings": _bindings, "reports": _reports}


async def write_all(kubeconfig: str, namespace: str, what: str) -> None:
    """Send the writes, then wait; `kubeconfig` is a text. Raises RuntimeError if one fails."""
    document = yaml.safe_load(kubeconfig)
    cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
    tls = ssl.create_default_context(cafile=cluster["certificate-authority"])
    tls.verify_flags &= ~ssl.VERIFY_X509_STRICT  # the API server's own CA has no key identifier
    pods_path = f"{cluster['server']}/api/v1/namespaces/{namespace}/pods"
    headers = {"Authorization": f"Bearer {user['token']}"}
    connections = aiohttp.TCPConnector(limit=_AT_ONCE, ssl=tls)
    async with aiohttp.ClientSession(headers=headers, connector=connections) as session:

        async def items(address: str) -> list[Any]:
            async with session.get(address) as response:
                response.raise_for_status()
                found: list[Any] = (await response.json())["items"]
                return found

        nodes = [node["metadata"]["name"] for node in await items(f"{cluster['server']}/api/v1/nodes")]
        waiting = iter(list(_WRITES[what](await items(pods_path), nodes)))

        async def worker() -> None:
            for method, path, content, body in waiting:
                address = f"{pods_path}/{path}"
                async with session.request(method, address, data=body, headers={"Content-Type": content}) as response:
                    if not response.ok:
                        raise RuntimeError(f"{method} {path}: {response.status}: {await response.text()}")
                    await response.read()

        await asyncio.gather(*(worker() for _ in range(_AT_ONCE)))
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(write_all(Path(sys.argv[1]).read_text(), *sys.argv[2:]))
