"""A cluster in memory in which random events happen one after the other, in a stopped clock's time.

The random source (seed, i) and the current state determine event number i. So any part of a run's events can be
played again without the others.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

from msgspec.structs import replace

from fluence_plugins.fluence.plugin import FluencePlugin
from fluence_plugins.resources.config import load_resources
from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.model.durations import DURATION_ANNOTATION
from session_scheduler.model.group_api import SCHEDULED
from session_scheduler.model.objects import Node, Pod, PodCondition, PodGroup, PodGroupStatus
from session_scheduler.testing import Answer, FakeCluster, builders

KINDS: Final = ("farm", "qpu", "qubit", "sampler")
ACTIONS: Final = ("allocate", "backfill", "reclaim", "preempt", "stale-gang-eviction")
GROUP_LABEL: Final = "fluence.flux-framework.org/group"
GROUP_SIZE: Final = "fluence.flux-framework.org/group-size"
WITHIN: Final = "fluence.flux-framework.org/within"
RACK_LABEL: Final = "example.com/rack"
NODES: Final = 8
RACKS: Final = 3
_MOST_PODS: Final = 90
"""With more pods than this, pods end instead of arriving."""
_BETWEEN: Final = 2.0
"""Seconds between two events, on average."""
_LIFE: Final = 150.0
"""Seconds that a pod runs, on average."""
_PATIENCE: Final = 300.0
"""Seconds after which a waiting pod is deleted."""
_REST: Final = 400.0
"""Seconds after which the scheduler retries every unschedulable pod, even without an event."""
_TURNS: Final = 40


def device(kind: str) -> str:
    """The resource that pods request."""
    return f"fluxion.flux-framework.org/{kind}"


def _duration(pod: Pod) -> str | None:
    return pod.metadata.annotations.get(DURATION_ANNOTATION)


class World:
    """`happen(i)` plays event i and lets the scheduler react; `rest` runs until nothing changes any more."""

    def __init__(self, seed: int, folder: Path, policy: str = "first") -> None:
        self._seed = seed
        self._chance = Random(f"{seed}")
        self._file = folder / "resources.yaml"
        self._file.write_text(json.dumps(self._trees()))
        self.cluster = FakeCluster(config=SchedulerConfig(actions=ACTIONS))
        levels = [{"type": "rack", "label": RACK_LABEL}]
        self.cluster.use("fluence", {"resources": str(self._file), "matchPolicy": policy, "topology": levels})
        for number in range(NODES):
            self._put_node(f"n{number}", 8)
        self.cluster.queue("top", limit={"cpu": "48"})
        for name in ("a", "b"):
            self._put_queue(name)
        self._ends: dict[str, float] = {}
        """The end of a running pod, by uid."""
        self.seen: dict[str, int] = {}
        """The number of evictions: by preemption, or as the rest of a gang."""
        self._patience: dict[str, float] = {}
        """The deadline of a waiting pod, by uid."""
        self.counts: dict[str, int] = {}
        """The number of events, by name."""
        self.now = 0.0
        """Seconds since the first event, without rests."""
        self._events: tuple[tuple[Callable[[str], None], int], ...] = (
            (self.pod_comes, 20), (self.device_pod_comes, 16), (self.gang_comes, 10), (self.device_gang_comes, 6),
            (self.label_group_comes, 5), (self.rack_gang_comes, 4), (self.urgent_pod_comes, 4),
            (self.large_gang_comes, 2),
            (self.pod_apart_comes, 4), (self.foreign_pod_comes, 3), (self.pod_goes, 6), (self.gang_goes, 3),
            (self.node_changes, 4), (self.node_is_cordoned, 4), (self.node_goes, 1), (self.node_comes, 3),
            (self.resources_change, 7), (self.queue_changes, 3), (self.scheduler_restarts, 2), (self.bind_fails, 3),
        )  # fmt: skip
        self._scheduled: dict[str, str] = {}
        """The scheduler's message for each started PodGroup, by name. Nothing else writes their statuses here."""
        self.cluster.start()
        self._watch()

    # ------------------------------------------------------------------ playing events

    def happen(self, number: int) -> str:
        """Play an event. Returns its name. Raises InvariantError, and all that the scheduler raises."""
        chance = self._chance = Random(f"{self._seed}:{number}")
        calls, weights = zip(*self._events, strict=True)
        call = chance.choices(calls, weights)[0]
        seconds = min(30.0, chance.expovariate(1 / _BETWEEN))
        self.now += seconds
        self.cluster.advance(seconds)
        if len(self.pods()) > _MOST_PODS and call.__name__.endswith("comes") and call != self.node_comes:
            call = self.gang_goes if chance.random() < 0.3 else self.pod_goes
        name: str = call.__name__
        self.counts[name] = self.counts.get(name, 0) + 1
        call(f"e{number}")
        self._end_those_due()
        self.cluster.run(cycles=2)
        self._write_statuses()
        self.cluster.finish_deletions()
        self._note_ends(chance)
        self.cluster.run()
        self._write_statuses()
        self.cluster.memory.events.clear()
        return name

    def rest(self) -> None:
        """Run without new events until nothing changes. Only the pods with a duration end."""
        self.cluster.memory.stop_failing()
        for _ in range(_TURNS):
            while ended := [pod for pod in self.pods() if pod.spec.node_name and _duration(pod)]:
                for pod in ended:
                    self._finish(pod)
            before = self.placements()
            for _ in range(3):
                self.cluster.advance(_REST)
                self.cluster.schedule()
                self._write_statuses()
                self.cluster.finish_deletions()
            self.cluster.memory.events.clear()
            if self.placements() == before:
                return
        raise AssertionError(f"no rest after {_TURNS} turns")

    def restart(self) -> None:
        """Start another scheduler, which knows only the cluster's objects."""
        self.cluster.restart()
        self._watch()

    def _watch(self) -> None:
        observer = self.cluster.scheduler.observer
        observer.group_scheduled = self._group_scheduled  # type: ignore[method-assign]
        for name in ("preempts", "gang_stale", "gang_timed_out"):
            setattr(observer, name, partial(self._seen, name))

    def _seen(self, name: str, *_: object) -> None:
        self.seen[name] = self.seen.get(name, 0) + 1

    def _group_scheduled(self, pod_group: PodGroup, message: str) -> None:
        self._scheduled[pod_group.metadata.name] = message

    def _write_statuses(self) -> None:
        for group in self.cluster.memory.objects(PodGroup):
            message = self._scheduled.pop(group.metadata.name, None)
            if message is not None:
                scheduled = PodCondition(type=SCHEDULED, status="True", reason="Scheduled", message=message)
                self.cluster.add(replace(group, status=PodGroupStatus(conditions=(scheduled,))))
        self._scheduled.clear()

    def _note_ends(self, chance: Random) -> None:
        now = self.cluster.clock.now()
        for pod in sorted(self.pods(), key=lambda pod: pod.key):
            if not pod.spec.node_name:
                self._patience.setdefault(pod.metadata.uid, now + _PATIENCE)
            elif pod.metadata.uid not in self._ends:
                duration = _duration(pod)
                self._ends[pod.metadata.uid] = now + (
                    float(duration[:-1]) * chance.uniform(0.3, 1.2) if duration else chance.expovariate(1 / _LIFE)
                )

    def _end_those_due(self) -> None:
        now = self.cluster.clock.now()
        there = {pod.metadata.uid: pod for pod in self.pods()}
        self._ends = {uid: at for uid, at in self._ends.items() if uid in there}
        self._patience = {uid: at for uid, at in self._patience.items() if uid in there}
        waited = [uid for uid, at in self._patience.items() if at <= now and not there[uid].spec.node_name]
        for uid in [*(uid for uid, at in self._ends.items() if at <= now), *waited]:
            self._finish(there[uid])

    def _finish(self, pod: Pod) -> None:
        """End the pod and delete its object, as a garbage collector would."""
        if pod.spec.node_name:
            self.cluster.end(pod.metadata.name)
            self.cluster.run()
        self.cluster.delete_pod(pod.metadata.name)

    # ------------------------------------------------------------------ objects

    @property
    def plugin(self) -> FluencePlugin:
        """The running plugin instance."""
        found = self.cluster.plugin("fluence")
        assert isinstance(found, FluencePlugin)
        return found

    def pods(self) -> list[Pod]:
        """The existing pods of our scheduler."""
        return [pod for pod in self.cluster.memory.objects(Pod) if pod.spec.scheduler_name == "fluence"]

    def nodes(self) -> list[str]:
        """The names of the nodes, sorted."""
        return sorted(node.metadata.name for node in self.cluster.memory.objects(Node))

    def placements(self) -> dict[str, str | None]:
        """The node of each pod."""
        return {pod.metadata.name: pod.spec.node_name or None for pod in self.pods()}

    def _some_pod(self) -> Pod | None:
        found = sorted(self.pods(), key=lambda pod: pod.key)
        return self._chance.choice(found) if found else None

    # ------------------------------------------------------------------ new pods

    def _options(self, *, cores: int = 3, kind: str = "") -> dict[str, Any]:
        """The options that the pods of one group share."""
        chance = self._chance
        requests = {device(kind): str(chance.choice([1, 1, 1, 2]))} if kind else {}
        options: dict[str, Any] = {
            "cpu": str(chance.randint(1, cores)), "memory": chance.choice(["100Mi", "1Gi", "2500Mi"]),
            "requests": requests, "queue": chance.choice(["", "a", "b", "a", "b"]), "annotations": {},
        }  # fmt: skip
        if chance.random() < 0.4:
            options["annotations"][DURATION_ANNOTATION] = f"{chance.choice([30, 120, 300])}s"
        if kind and chance.random() < 0.3:
            how = chance.choice(["require", "prefer"])
            options["annotations"][f"fluence.flux-framework.org/{how}-region"] = chance.choice(["east", "west"])
        return options

    def pod_comes(self, name: str) -> None:
        self.cluster.pod(name, **self._options())

    def device_pod_comes(self, name: str) -> None:
        self.cluster.pod(name, **self._options(kind=self._chance.choice(KINDS)))

    def gang_comes(self, name: str) -> None:
        size = self._chance.randint(2, 5)
        self.cluster.gang(name, size, min_count=self._chance.choice([size, size, size - 1]), **self._options())

    def device_gang_comes(self, name: str) -> None:
        kind = self._chance.choice(["qpu", "qubit", "sampler"])
        self.cluster.gang(name, self._chance.randint(2, 3), **self._options(cores=1, kind=kind))

    def label_group_comes(self, name: str) -> None:
        size, options = self._chance.randint(2, 4), self._options()
        options["annotations"][GROUP_SIZE] = str(size)
        self.cluster.pods(size, prefix=name, labels={GROUP_LABEL: name}, **options)

    def rack_gang_comes(self, name: str) -> None:
        """A gang that requires a single rack."""
        size, options = self._chance.randint(2, 4), self._options(cores=2)
        group = builders.pod_group(name, size)
        self.cluster.add(replace(group, metadata=replace(group.metadata, annotations={WITHIN: "rack"})))
        self.cluster.pods(size, prefix=name, group=name, **options)

    def urgent_pod_comes(self, name: str) -> None:
        kind = self._chance.choice(["", "qpu"])
        self.cluster.pod(name, priority=self._chance.choice([10, 50]), **self._options(kind=kind))

    def large_gang_comes(self, name: str) -> None:
        """A gang that waits for long while others start around it."""
        self.cluster.gang(name, 5, **{**self._options(), "cpu": "7", "queue": ""})

    def pod_apart_comes(self, name: str) -> None:
        self.cluster.pod(name, host_port=self._chance.choice([80, 81]), **self._options(cores=1))

    def foreign_pod_comes(self, name: str) -> None:
        there = sorted(
            pod.metadata.name for pod in self.cluster.memory.objects(Pod) if pod.spec.scheduler_name == "other"
        )
        for one in there[:-4]:
            self.cluster.delete_pod(one)
        where = self._chance.choice(self.nodes())
        self.cluster.pod(name, cpu=self._chance.choice(["300m", "1500m"]), scheduler="other", bound_to=where)

    # ------------------------------------------------------------------ deleted pods

    def pod_goes(self, _: str) -> None:
        pod = self._some_pod()
        if pod is not None:
            self._finish(pod)

    def gang_goes(self, _: str) -> None:
        groups = sorted(group.metadata.name for group in self.cluster.memory.objects(PodGroup))
        if not groups:
            return
        name = self._chance.choice(groups)
        for pod in self.pods():
            if pod.metadata.name.rpartition("-")[0] == name:
                self.cluster.delete_pod(pod.metadata.name)
        self.cluster.delete(PodGroup, name)

    # ------------------------------------------------------------------ nodes

    def _put_node(self, name: str, cores: int, *, cordoned: bool = False) -> None:
        offers = {device(kind): "1000" for kind in KINDS}
        labels = {RACK_LABEL: f"r{int(name[1:]) % RACKS}"}
        self.cluster.node(name, cpu=str(cores), memory="32Gi", offers=offers, unschedulable=cordoned, labels=labels)

    def node_changes(self, _: str) -> None:
        self._put_node(self._chance.choice(self.nodes()), self._chance.randint(4, 10))

    def node_is_cordoned(self, _: str) -> None:
        """Toggle the cordon of a node."""
        node = self.cluster.find(Node, self._chance.choice(self.nodes()))
        self.cluster.add(replace(node, spec=replace(node.spec, unschedulable=not node.spec.unschedulable)))

    def node_goes(self, _: str) -> None:
        if len(self.nodes()) > NODES // 2:
            self.cluster.remove_node(self._chance.choice(self.nodes()))

    def node_comes(self, _: str) -> None:
        missing = sorted({f"n{number}" for number in range(NODES)} - set(self.nodes()))
        if missing:
            self._put_node(missing[0], 8)

    # ------------------------------------------------------------------ configuration

    def _trees(self) -> dict[str, Any]:
        """Random trees: devices appear, disappear, move and change, and so do their sharing and status."""
        chance, trees = self._chance, list[dict[str, Any]]()
        for name, region in (("aurora", "east"), ("borealis", "west")):
            if chance.random() < 0.1:
                continue
            qubit = {"type": "qubit", "count": chance.randint(2, 4)}
            qpu = {"type": "qpu", "count": 2, "sharing": chance.choice([1, 1, 2]), "with": [qubit]}
            status = chance.choice(["up", "up", "up", "down"])
            trees.append({"type": "farm", "name": name, "status": status, "attributes": {"region": region},
                          "parent": chance.choice(["cluster", "cluster", "n1"]), "with": [qpu]})  # fmt: skip
        trees.append({"type": "sampler", "name": "simmer", "sharing": chance.choice([1, 2, 4])})
        trees.append({"type": "qpu", "name": "lone", "count": chance.randint(1, 3), "sharing": chance.choice([1, 3])})
        chance.shuffle(trees)
        return {"resources": trees}

    def resources_change(self, _: str) -> None:
        text = json.dumps(self._trees())
        self._file.write_text(text)
        self.plugin.set_resources(load_resources(text, "resources.yaml"))
        self.cluster.scheduler.queue.plugin_changed("fluence")

    def _put_queue(self, name: str) -> None:
        limit = {"cpu": str(self._chance.choice([16, 24, 32])), device("qpu"): str(self._chance.randint(1, 4))}
        deserved = {"cpu": str(self._chance.choice([4, 8])), device("qpu"): "1"}
        self.cluster.add(builders.queue(name, parent="top", limit=limit, deserved=deserved))

    def queue_changes(self, _: str) -> None:
        self._put_queue(self._chance.choice(["a", "b"]))

    # ------------------------------------------------------------------ failures

    def scheduler_restarts(self, _: str) -> None:
        self.restart()

    def bind_fails(self, _: str) -> None:
        """Let one bind of a waiting pod fail."""
        waiting = sorted(pod.metadata.name for pod in self.pods() if not pod.spec.node_name)
        if waiting:
            answer = self._chance.choice([Answer.REFUSED, Answer.LOST, Answer.UNHEARD])
            self.cluster.fail_binds(self._chance.choice(waiting), answer=answer, times=1)
