"""The alerts over the metrics of a real scheduler in memory, which is scraped once a minute for 110 minutes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from docs.generated import device_plugin_metrics, scheduler_metrics, webhook_metrics

from session_scheduler import hookimpl
from session_scheduler.base.clock import StoppedClock
from session_scheduler.builtin import BUILTIN
from session_scheduler.cluster.errors import Forbidden
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.engine import loop as engine_module
from session_scheduler.engine.loop import SchedulerLoop
from session_scheduler.engine.scheduler import Scheduler
from session_scheduler.registry.validation import hook_calls
from session_scheduler.reporting.live_observer import LiveObserver
from session_scheduler.reporting.metrics import Metrics
from session_scheduler.reporting.recorder import Recorder
from session_scheduler.testing import node, pod, pod_group

from ...tools.deploying import said
from .test_alerts import FAULTS, WELL, rules, write_rules

pytestmark = pytest.mark.programs

MINUTES = 110
OTHERS = {name: values for name, values in WELL.items() if re.match(r"up\{|fluence_(webhook|device|masterqueue)", name)}
"""Series of other programs, which work."""
ADDED = {"pod", "node", "job"}
"""Labels that Prometheus adds to a target's series."""


class Broken:
    """A plugin that fails for pods with the label `broken`."""

    name = "broken"

    @hookimpl
    def class_key(self, pod: Any) -> str:
        return str("broken" in pod.metadata.labels)

    @hookimpl
    def filter(self, cls: Any, nodes: Any) -> None:
        if "broken" in cls.pod.metadata.labels:
            raise RuntimeError("a bug")


class Cluster(MemoryCluster):
    """Passes each change to `deliver`, after `delay` minutes; rejects the binds of pods named `rejected-...`."""

    delay = 0

    def __init__(self, *objects: Any) -> None:
        self.deliver: Callable[..., None] = lambda *_: None
        self.late: list[tuple[int, Any, Any]] = []
        super().__init__(objects)

    def _publish(self, change: Any, obj: Any) -> None:
        super()._publish(change, obj)
        self.late.append((self.delay, change, obj))

    def minute(self) -> None:
        due = [entry for entry in self.late if not entry[0]]
        self.late = [(delay - 1, change, obj) for delay, change, obj in self.late if delay]
        for _, change, obj in due:
            self.deliver(change, obj)

    async def bind(self, namespace: str, name: str, **options: Any) -> Any:
        if name.startswith("rejected"):
            raise Forbidden("pods/binding is forbidden")
        return await super().bind(namespace, name, **options)


class Run:
    """A leader and its standby."""

    def __init__(self) -> None:
        self.clock = StoppedClock()
        self.cluster = Cluster(node("n1", cpu="1000", pods=10_000))
        self.metrics, self.standby = Metrics("1"), Metrics("1")
        self.leads, self.standby_leads = True, False
        self.metrics.follow_leader(lambda: self.leads)
        self.standby.follow_leader(lambda: self.standby_leads)
        due = asyncio.Event()
        observer = LiveObserver(Recorder(self.cluster, clock=self.clock), self.metrics, self.clock, finished=due.set)
        listed = [(name, builtin(None), None) for name, builtin in BUILTIN.items()]
        self.profiles = {"fluence": hook_calls([*listed, ("broken", Broken(), None)])}
        self.scheduler = Scheduler(self.cluster, SchedulerConfig(), self.profiles, self.clock, observer=observer)
        self.loop = SchedulerLoop(self.scheduler, observer, self.metrics, self.clock, due)
        self.cluster.deliver = self.loop.deliver
        self.metrics.follow_pending(self.loop.pending)
        self.metrics.follow_profiles(self.profiles)
        self.turns = True
        self.scrapes: list[dict[str, float]] = []

    async def minute(self, number: int) -> None:
        for _ in range(3):
            self.cluster.minute()
            if self.turns:
                await self.loop._turn()
            for _ in range(20):
                await asyncio.sleep(0)
            self.clock.advance(20.0)
        self.cluster.finish_deletions()
        self.scrapes.append(self._scraped())

    def _scraped(self) -> dict[str, float]:
        """The samples that the alerts read, with the label `pod` of the replica."""
        found = {}
        for replica, metrics in (("a", self.metrics), ("b", self.standby)):
            for line in metrics.exposition()[0].decode().splitlines():
                name, _, labels = line.rpartition(" ")[0].rstrip("}").partition("{")
                if name in _ASKED:
                    found[f'{name}{{{labels}{labels and ","}pod="{replica}"}}'] = float(line.rpartition(" ")[2])
        return found

    def series(self) -> dict[str, str]:
        names = dict.fromkeys(name for scrape in self.scrapes for name in scrape)
        return {
            name: " ".join(f"{scrape[name]:g}" if name in scrape else "_" for scrape in self.scrapes) for name in names
        }


_ASKED = {name for rule in rules() for name in re.findall(r"\bfluence_\w+", rule["expr"])}
Fault = Callable[[Run, int], Awaitable[None] | None]


def nothing_fits(run: Run, minute: int) -> None:
    run.cluster.put(pod(f"large-{minute}", cpu="9000"))


def no_leader(run: Run, minute: int) -> None:
    run.leads = minute < 60


def two_leaders(run: Run, minute: int) -> None:
    run.standby_leads = minute >= 60


def stuck(run: Run, minute: int) -> None:
    if minute == 59:  # its turn ingests the pods, and ends before it decides
        run.scheduler.decide = no_decision  # type: ignore[method-assign]
    run.turns = minute < 60


async def no_decision() -> None:
    """Decides nothing."""


def cycles_fail(run: Run, minute: int) -> None:
    if minute == 105:
        apply = run.scheduler.event_handlers.apply

        async def fails(change: Any, obj: Any) -> None:
            run.scheduler.event_handlers.apply = apply  # type: ignore[method-assign]
            raise RuntimeError("a bug")

        run.scheduler.event_handlers.apply = fails  # type: ignore[method-assign]


def attempts_fail(run: Run, minute: int) -> None:
    for number in range(6 if minute == 90 else 0):
        run.cluster.put(pod(f"broken-{number}", labels={"broken": ""}))


def cannot_bind(run: Run, minute: int) -> None:
    for number in range(6 if minute == 90 else 0):
        run.cluster.put(pod(f"rejected-{number}"))


def evicts_gangs(run: Run, minute: int) -> None:
    if minute == 90:
        for one in (pod_group("g", 2), pod("g-0", group="g"), pod("rejected", group="g")):
            run.cluster.put(one)


def blind(run: Run, minute: int) -> None:
    run.cluster.delay = 2  # of three turns in a minute


def watch_breaks(run: Run, minute: int) -> None:
    run.metrics.watches.watch_ended("Pod", "Unavailable")
    run.metrics.watches.watch_ended("Pod", "Unavailable")


def misses_events(run: Run, minute: int) -> None:
    if minute == 100:
        run.metrics.watches.missed("Node", 1)


def lease_at_risk(run: Run, minute: int) -> None:
    run.metrics.renewal_failures.add(count=3)


def reports_dropped(run: Run, minute: int) -> None:
    for _ in range(60):
        run.metrics.reports.dropped("event", "Full")


def plugin_slow(run: Run, minute: int) -> None:
    for call in run.profiles["fluence"].hooks["filter"]:
        if call.plugin == "broken":
            call.seconds += 48.0


FAULT: dict[str, Fault] = {
    "": lambda run, minute: None,
    "FluenceNoLeader": no_leader,
    "FluenceTwoLeaders": two_leaders,
    "FluenceStuck": stuck,
    "FluenceCyclesFail": cycles_fail,
    "FluenceNothingFits": nothing_fits,
    "FluenceAttemptsFail": attempts_fail,
    "FluenceCannotBind": cannot_bind,
    "FluenceEvictsGangs": evicts_gangs,
    "FluenceBlind": blind,
    "FluenceWatchBreaks": watch_breaks,
    "FluenceMissesEvents": misses_events,
    "FluenceLeaseAtRisk": lease_at_risk,
    "FluenceReportsDropped": reports_dropped,
    "FluencePluginSlow": plugin_slow,
}
"""Faults of the scheduler itself, minute by minute, by the alert that fires; FluenceNoStandby has a test of its own."""


async def observed(fault: Fault, *, arrivals: bool) -> Run:
    run = Run()
    await run.scheduler.start()
    for minute in range(MINUTES + 1):
        fault(run, minute)
        if arrivals:
            run.cluster.put(pod(f"p-{minute}"))
        await run.minute(minute)
    return run


def firing(folder: Path, series: dict[str, str], names: list[str]) -> None:
    """Assert that exactly these alerts fire at the end."""
    file = folder / "tests.yaml"
    samples = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in names]
    expected = {"expr": 'count by (alertname) (ALERTS{alertstate="firing"})', "eval_time": f"{MINUTES}m",
                "exp_samples": samples}  # fmt: skip
    given = [{"series": name, "values": values} for name, values in (OTHERS | series).items()]
    tested = {"interval": "1m", "input_series": given, "promql_expr_test": [expected]}
    file.write_text(yaml.safe_dump({"rule_files": [write_rules(folder).name], "tests": [tested]}))
    said("promtool", "test", "rules", file)


@pytest.mark.parametrize("alert", FAULT)
async def test_an_alert_fires_for_its_fault_of_a_real_scheduler(
    alert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "_AFTER_ERROR", 0.0)
    run = await observed(FAULT[alert], arrivals=alert != "FluenceNothingFits")
    firing(tmp_path, run.series(), [alert] if alert else [])


async def test_a_leader_alone_has_no_standby(tmp_path: Path) -> None:
    run = await observed(FAULT[""], arrivals=True)
    firing(tmp_path, {name: values for name, values in run.series().items() if 'pod="b"' not in name},
           ["FluenceNoStandby"])  # fmt: skip


def test_every_series_of_the_tests_of_alerts_is_one_that_a_program_has() -> None:
    """Names, labels and the values of labels with few values are those of real scrapes."""
    known: dict[str, dict[str, set[str]]] = {}
    for family in [*scheduler_metrics(), *webhook_metrics(), *device_plugin_metrics()]:
        for sample in family.samples:
            labels = known.setdefault(sample.name, {})
            for name, value in sample.labels.items():
                labels.setdefault(name, set()).add(value)
    known["fluence_leader"] = {}
    for series in sorted({*WELL, *(name for changes in FAULTS.values() for name in changes)}):
        name, _, rest = series.rstrip("}").partition("{")
        if name == "up":
            continue
        shown = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        own = {label: value for label, value in shown.items() if label not in ADDED}
        assert set(own) <= set(known[name]), series
        for label in own.keys() & {"state", "result", "code", "le", "held"}:
            assert own[label] in known[name][label], series
