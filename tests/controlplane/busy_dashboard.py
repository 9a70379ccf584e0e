"""A dashboard with impatient users, to run beside a measured scheduler.

`python -m tests.controlplane.busy_dashboard KUBECONFIG LOG` starts `fluence dashboard`, signs in, writes SERVING to
standard output, and requests its pages one after the other, also those that it refuses for the rate, until SIGTERM.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import signal
import sys
from pathlib import Path
from typing import Final

import aiohttp

from .processes import Program

SERVING: Final = "the dashboard is asked for its pages"
_ADDRESS: Final = re.compile(r"http://\S+\?token=\S+")
_PAGES: Final = ("overview", "pending", "queues", "nodes", "gangs")
_CLIENTS: Final = 4
_ANY_PORT: Final = "127.0.0.1:0"
_PATIENCE: Final = 60.0
_TIMEOUT: Final = aiohttp.ClientTimeout(total=30)
_PAUSE: Final = 0.02
"""Seconds between two requests of a client: more often than the dashboard allows."""


async def _ask(address: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    jar = aiohttp.CookieJar(unsafe=True)  # the host is an address
    async with aiohttp.ClientSession(cookie_jar=jar, timeout=_TIMEOUT) as session:
        async with session.get(address) as first:
            first.raise_for_status()
        print(SERVING, flush=True)
        root = address.partition("?")[0]
        clients = [asyncio.create_task(_client(session, root, place)) for place in range(_CLIENTS)]
        await stop.wait()
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)


async def _client(session: aiohttp.ClientSession, root: str, place: int) -> None:
    for page in itertools.islice(itertools.cycle(_PAGES), place, None):
        async with session.get(f"{root}{page}") as answer:
            await answer.read()
        await asyncio.sleep(_PAUSE)


def main(kubeconfig: str, log: Path) -> None:
    """Run until SIGTERM. Raises StartError."""
    command: list[str | Path] = [
        Path(sys.executable).with_name("fluence"),
        "dashboard",
        "--kubeconfig",
        kubeconfig,
        "--bind",
        _ANY_PORT,
    ]
    dashboard = Program("the dashboard", command, log)
    try:
        dashboard.wait_until(lambda: _ADDRESS.search(log.read_text()) is not None, _PATIENCE)
        asyncio.run(_ask(_ADDRESS.findall(log.read_text())[0]))
    finally:
        dashboard.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
