"""Reads the scheduler's metrics, from itself and from Prometheus, within limits of time and size."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

import aiohttp
import structlog
from prometheus_client.parser import text_string_to_metric_families

from fluence_lab.dashboard.failures import why
from fluence_lab.dashboard.history import HistoryRecorder, Rates

__all__ = ["backfill", "scrape"]

_log = structlog.get_logger(__name__)

SCRAPE_SECONDS: Final = 5.0
BACKFILL_SECONDS: Final = 6 * 3600
STEP_SECONDS: Final = 60
MOST_BYTES: Final = 8 << 20
_LIMIT: Final = aiohttp.ClientTimeout(total=10, connect=3)
_READ: Final = ("fluence_cycles_total", "fluence_hook_calls_total", "fluence_hook_seconds_total")
QUERIES: Final = {
    "pending": "sum(fluence_pending_pods)",
    "binds": 'sum(rate(fluence_pods_total{result="scheduled"}[5m]))',
    "cycles": "sum(rate(fluence_cycles_total[5m]))",
}
"""The queries to Prometheus, by the name of the series."""


async def scrape(url: str, recorder: HistoryRecorder) -> None:
    """Read the scheduler's /metrics every few seconds, for ever. A failure is logged once."""
    failed = False
    async with _session() as session:
        while True:
            try:
                recorder.scraped(parsed((await _body(session, url, {})).decode(), time.time()))
                failed = False
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                if not failed:
                    _log.warning("the scheduler's metrics cannot be read", url=url, why=why(error))
                failed = True
            await asyncio.sleep(SCRAPE_SECONDS)


async def backfill(url: str, recorder: HistoryRecorder) -> None:
    """Read from Prometheus what happened before the dashboard started. A failure is logged."""
    end = int(time.time())
    found: dict[float, dict[str, float]] = defaultdict(dict)
    try:
        async with _session() as session:
            for name, query in QUERIES.items():
                values = {"query": query, "start": end - BACKFILL_SECONDS, "end": end, "step": STEP_SECONDS}
                address = f"{url.rstrip('/')}/api/v1/query_range"
                for when, value in range_values(json.loads(await _body(session, address, values))):
                    found[when][name] = value
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        _log.warning("Prometheus cannot be read", url=url, why=why(error))
    recorder.before(found.items())


def parsed(text: str, now: float) -> Rates:
    """The numbers of an exposition. Raises ValueError."""
    lines = "\n".join(line for line in text.split("\n") if line.startswith(_READ))
    cycles = 0.0
    timings: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(lines + "\n"):
        for sample in family.samples:
            if sample.name == _READ[0]:
                cycles += sample.value
            elif plugin := sample.labels.get("plugin"):
                timing = timings.setdefault(plugin, {"seconds": 0.0, "calls": 0.0})
                timing["calls" if sample.name == _READ[1] else "seconds"] += sample.value
    return Rates(now, cycles, timings)


def range_values(answer: Any) -> list[tuple[float, float]]:
    """The times and values of the first series of a range query. Raises ValueError."""
    try:
        if answer["status"] != "success":
            raise ValueError(f"status {answer['status']}")
        series = answer["data"]["result"]
        values = [(float(when), float(value)) for when, value in series[0]["values"]] if series else []
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError("the response is not the result of a range query") from error
    return [(when, value) for when, value in values if math.isfinite(when) and math.isfinite(value)]


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=_LIMIT)


async def _body(session: aiohttp.ClientSession, url: str, values: Mapping[str, Any]) -> bytes:
    async with session.get(url, params=values, allow_redirects=False) as response:
        if response.status != 200:
            raise ValueError(f"HTTP status {response.status}")
        body = b""
        async for part in response.content.iter_chunked(1 << 16):
            body += part
            if len(body) > MOST_BYTES:
                raise ValueError(f"the response is longer than {MOST_BYTES >> 20} MiB")
        return body
