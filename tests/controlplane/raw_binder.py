"""Binds every unbound pod of a namespace without any decision: the upper limit for a scheduler in Python.

`python -m tests.controlplane.raw_binder KUBECONFIG NAMESPACE` lists nodes and pods once, then sends the bindings, nodes
in turn, as many at once as the scheduler's default. Then it waits for a signal, so that its usage can be read.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import ssl
import sys
from pathlib import Path
from typing import Any

import aiohttp
import yaml

_AT_ONCE = 64


def _binding(pod: dict[str, Any], node: str) -> bytes:
    of = {key: pod["metadata"][key] for key in ("namespace", "name", "uid", "resourceVersion")}
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    return json.dumps({"apiVersion": "v1", "kind": "Binding", "metadata": of, "target": target}).encode()


async def bind_all(kubeconfig: str, namespace: str) -> None:
    """Bind the pods, then wait; `kubeconfig` is a text. Raises RuntimeError if a binding fails."""
    document = yaml.safe_load(kubeconfig)
    cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
    tls = ssl.create_default_context(cafile=cluster["certificate-authority"])
    tls.verify_flags &= ~ssl.VERIFY_X509_STRICT  # the API server's own CA has no key identifier
    pods_path = f"{cluster['server']}/api/v1/namespaces/{namespace}/pods"
    headers = {"Authorization": f"Bearer {user['token']}", "Content-Type": "application/json"}
    connections = aiohttp.TCPConnector(limit=_AT_ONCE, ssl=tls)
    async with aiohttp.ClientSession(headers=headers, connector=connections) as session:

        async def items(address: str) -> list[Any]:
            async with session.get(address) as response:
                response.raise_for_status()
                found: list[Any] = (await response.json())["items"]
                return found

        nodes = itertools.cycle([node["metadata"]["name"] for node in await items(f"{cluster['server']}/api/v1/nodes")])
        waiting = iter([(pod["metadata"]["name"], _binding(pod, next(nodes))) for pod in await items(pods_path)])

        async def worker() -> None:
            for name, body in waiting:
                async with session.post(f"{pods_path}/{name}/binding", data=body) as response:
                    if not response.ok:
                        raise RuntimeError(f"binding of {name}: {response.status}: {await response.text()}")
                    await response.read()

        await asyncio.gather(*(worker() for _ in range(_AT_ONCE)))
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(bind_all(Path(sys.argv[1]).read_text(), sys.argv[2]))
