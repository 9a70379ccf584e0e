"""The dashboard with 5,000 nodes and 50,000 pods: first paint in Chromium, and the server time of an update.

Not a test: run `make bench-dashboard`. For each page: the milliseconds until Chromium's first contentful paint and
until all figures are drawn, the page's size, and the server's milliseconds for an update after 200 pods were bound,
while clients follow the pages. `--json FILE` writes the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
from bench_observe import QUEUES, objects
from msgspec.structs import replace
from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.table import Table

from fluence_lab.dashboard.access import LocalAccess
from fluence_lab.dashboard.run import serving
from fluence_lab.dashboard.server import Dashboard
from fluence_lab.panels import installed
from session_scheduler.base.clock import SystemClock
from session_scheduler.builtin import BUILTIN
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.config.settings import QueueConfig, SchedulerConfig
from session_scheduler.engine.scheduler import Scheduler
from session_scheduler.observation.observer import Observer
from session_scheduler.registry.registry import Registry

ROUNDS = 5
PAINT_MS = 2000
UPDATE_MS = 200


def painted(address: str, token: str, pages: list[str]) -> dict[str, dict[str, float]]:
    """What Chromium measures of each page, the median of three visits."""
    found: dict[str, dict[str, float]] = {}
    with sync_playwright() as playwright:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=sandbox)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(f"{address}/?token={token}")
        for name in pages:
            paints, draws = [], []
            for _ in range(3):
                page.goto(f"{address}/{name}")
                page.wait_for_selector("main[data-drawn], main:not(:has(figure))")
                draws.append(page.evaluate("performance.now()"))
                paints.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
            found[name] = {"first paint": median(paints), "drawn": median(draws)}
        browser.close()
    return found


@asynccontextmanager
async def following(session: aiohttp.ClientSession, address: str, pages: list[str], clients: int) -> Any:
    """Clients that follow the pages and read everything."""

    async def read(page: str) -> None:
        async with session.get(f"{address}/events/{page}") as response:
            assert response.status == 200, await response.text()
            async for _ in response.content.iter_any():
                pass

    tasks = [asyncio.ensure_future(read(pages[number % len(pages)])) for number in range(clients)]
    await asyncio.sleep(2)
    assert not any(task.done() for task in tasks)
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def measure(nodes: int, pods: int, changes: int, clients: int) -> dict[str, Any]:
    """All figures."""
    config = SchedulerConfig(queues=tuple(QueueConfig(name=f"queue-{number}") for number in range(QUEUES)))
    scheduler = Scheduler(MemoryCluster(), config, Registry(BUILTIN).load_calls(config), SystemClock())
    cluster = MemoryCluster()
    await scheduler.start([cluster.put(obj) for obj in objects(nodes, pods)])
    observer = Observer(scheduler, "a benchmark", evaluates=False)
    access = LocalAccess()
    tokens: list[str] = []
    access.show = tokens.append
    access.renew()
    dashboard = Dashboard(observer, access, installed(), live=True)
    waiting = [task.pod for task in scheduler.cache.tasks.values() if task.node is None]

    def bind(turn: int) -> None:
        for place, one in enumerate(waiting[turn * changes : (turn + 1) * changes]):
            bound = replace(one, spec=replace(one.spec, node_name=f"n-{place % nodes}"))
            scheduler.event_handlers.absorb("MODIFIED", bound)
        observer.notify()

    async with AsyncExitStack() as stack:
        address = f"http://{await stack.enter_async_context(serving(dashboard, '127.0.0.1', 0))}"
        session = await stack.enter_async_context(aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)))
        async with session.get(f"{address}/?token={tokens[-1]}") as response:
            text = await response.text()
        pages = [part.partition('"')[0] for part in text.partition("<ul>")[2].partition("</ul>")[0].split('href="')[1:]]
        found: dict[str, Any] = {page: {} for page in pages}
        turn = 0
        for page in pages:
            times = []
            async with following(session, address, [page], 1):
                for _ in range(ROUNDS):
                    bind(turn := turn + 1)
                    started = time.process_time()
                    await dashboard.pages.update()
                    times.append((time.process_time() - started) * 1000)
                    await asyncio.sleep(0.2)
            found[page]["update"] = median(times)
            async with session.get(f"{address}/{page}") as response:
                found[page]["kB"] = len(await response.read()) / 1000
        async with following(session, address, pages, clients):
            times = []
            for _ in range(ROUNDS):
                bind(turn := turn + 1)
                started = time.process_time()
                await dashboard.pages.update()
                times.append((time.process_time() - started) * 1000)
                await asyncio.sleep(0.5)
        for page, figures in (await asyncio.to_thread(painted, address, tokens[-1], pages)).items():
            found[page] |= figures
    return {"pages": found, "all pages with clients": {"clients": clients, "update": median(times)}}


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=50_000)
    parser.add_argument("--changes", type=int, default=200)
    parser.add_argument("--clients", type=int, default=14)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    figures = asyncio.run(measure(options.nodes, options.pods, options.changes, options.clients))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    table = Table(
        "page", "update CPU ms", "first paint ms", "drawn ms", "kB",
        title=f"{options.nodes} nodes, {options.pods} pods, {options.changes} changes",
    )  # fmt: skip
    for page, each in figures["pages"].items():
        table.add_row(page, *(f"{each[name]:.0f}" for name in ("update", "first paint", "drawn", "kB")))
    together = figures["all pages with clients"]
    Console().print(table)
    print(f"all pages together, with {together['clients']} clients: {together['update']:.0f} ms of CPU for an update")
    print(f"wanted: an update within {UPDATE_MS} ms, first paint within {PAINT_MS} ms")


if __name__ == "__main__":
    main()
