"""Consumers go once their producer runs, and go away where none is to come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fluence_plugins.fluence.plugin import FluencePlugin
from fluence_plugins.fluence.tasks import coordinated_pods
from fluence_plugins.fluence.tasks.consumer_gates import ConsumerGates
from fluence_plugins.fluence.tasks.coordinated_pods import CoordinatedPods, decide
from fluence_plugins.resources.coordination import GATE, group_of, keeps, waits
from session_scheduler.cluster.errors import Conflict, Forbidden, Gone, NotFound
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.framework.bindings import Runtime
from session_scheduler.model.meta import OwnerReference
from session_scheduler.model.objects import KubeObject, Pod
from session_scheduler.testing import FakeCluster, pod

PREFIX = "fluence.flux-framework.org/"
BACKEND, REGION, JOB_ID = f"{PREFIX}backend", f"{PREFIX}attr-region", f"{PREFIX}quantum-job-id"
GIVEN = {BACKEND: "aurora", REGION: "east"}
MINE: dict[str, Any] = {BACKEND: "mine", f"{PREFIX}attr-vendor": "x"}


def owned(made: Pod, job: str) -> Pod:
    owners = (OwnerReference(api_version="batch/v1", kind="Job", name=job, uid=job, controller=True),) if job else ()
    return replace(made, metadata=replace(made.metadata, owner_references=owners))


def producer(name: str = "p", phase: str = "Pending", *, job: str = "", group: str = "g", **annotations: str) -> Pod:
    said = {f"{PREFIX}coordination-role": "producer", f"{PREFIX}group-size": "1"} | annotations
    made = pod(name, labels={f"{PREFIX}group": f"{group}-producer"}, annotations=said)
    return owned(replace(made, status=replace(made.status, phase=phase)), job)


def consumer(
    name: str = "c", *, job: str = "", group: str = "g", size: int = 1, gates: tuple[str, ...] = (GATE,), **more: str
) -> Pod:
    said = {
        f"{PREFIX}coordination-role": "consumer",
        f"{PREFIX}depends-on-producer": f"{group}-producer",
        f"{PREFIX}depends-on-kind": "producer-running",
        f"{PREFIX}group-size": str(size),
    }
    return owned(pod(name, labels={f"{PREFIX}group": group}, annotations=said | more, gates=gates), job)


def waits_for(kind: str) -> dict[str, Any]:
    return {f"{PREFIX}depends-on-kind": kind}


async def _seen(true: Callable[[], bool]) -> None:
    """Return once it is so; each look lets all others go on."""
    async with asyncio.timeout(60):
        while not true():  # noqa: ASYNC110 (what it looks at sends no event)
            await asyncio.sleep(0.005)


class World:
    """A cluster in memory with what follows producers; `events` are those of the pods."""

    def __init__(self, *objects: Pod, grace: float = 0.0, cluster: MemoryCluster | None = None) -> None:
        self.cluster = cluster or MemoryCluster(objects)
        self.gates = ConsumerGates(grace=grace, again=0.01)
        self.events: list[tuple[str, str, str]] = []
        self.elected = True

    def run(self, until: Callable[[], bool], *, then: Callable[[], Any] = lambda: None, look: bool = True) -> None:
        """Serve until it is so; `then` is done once everything was looked at, and `until` is waited for after it."""

        async def serve() -> None:
            runtime = Runtime(
                lambda *_: None,
                lambda: self.elected,
                self.cluster,
                tell=self._tell,  # codespell:ignore tell
            )
            if look:
                for each in self.cluster.objects(Pod):
                    self.gates.observe(each)
            async with self.gates.serve(runtime):
                for _ in range(50):
                    await asyncio.sleep(0)
                then()
                await _seen(until)

        asyncio.run(serve())

    def _tell(self, about: KubeObject, reason: str, note: str) -> None:
        self.events.append((about.metadata.name, reason, note))

    def pod(self, name: str) -> Pod | None:
        return next((each for each in self.cluster.objects(Pod) if each.metadata.name == name), None)

    def waits(self, name: str = "c") -> bool:
        found = self.pod(name)
        return found is not None and waits(found)

    def is_open(self, *names: str) -> bool:
        return all(
            (found := self.pod(name)) is not None and not found.spec.scheduling_gates for name in names or ("c",)
        )

    def put(self, made: Pod) -> None:
        self.cluster.put(made)


def test_consumers_go_when_their_producer_runs_and_learn_what_it_got() -> None:
    world = World(producer(), consumer("c"), consumer("d", gates=("mine/own", GATE)))
    world.run(
        lambda: world.is_open("c") and not world.waits("d"), then=lambda: world.put(producer(phase="Running", **GIVEN))
    )
    for name in ("c", "d"):
        found = world.pod(name)
        assert found is not None
        assert {key: found.metadata.annotations.get(key) for key in GIVEN} == GIVEN
    other = world.pod("d")
    assert other is not None
    assert [gate.name for gate in other.spec.scheduling_gates] == ["mine/own"], "that gate is another controller's"
    assert ("c", "ProducerRuns", f"the producer runs on aurora: removed the scheduling gate {GATE}") in world.events
    assert world.gates.counts == {"ungated": 2, "deleted": 0, "failed": 0}


def test_what_a_user_wrote_there_is_replaced() -> None:
    world = World(producer(phase="Running", **GIVEN), consumer("c", **MINE))
    world.run(world.is_open)
    found = world.pod("c")
    assert found is not None
    assert found.metadata.annotations.get(BACKEND) == "aurora"
    assert f"{PREFIX}attr-vendor" not in found.metadata.annotations


def test_the_waiting_consumers_of_each_group_are_passed_on() -> None:
    passed: list[list[str]] = []
    world = World(producer(), consumer("a"), consumer("b"), consumer("c", group="h"), consumer("open", gates=()))
    world.gates = ConsumerGates(complete=lambda pods: passed.append(sorted(pod.metadata.name for pod in pods)))
    world.run(lambda: len(passed) > 1)
    assert sorted(passed) == [["a", "b"], ["c"]]


def test_another_replica_goes_on_where_one_ended() -> None:
    world = World(producer(phase="Running", **GIVEN), consumer())
    world.gates.observe(consumer())
    assert world.waits()
    again = World(cluster=world.cluster)
    again.run(again.is_open)


def test_a_consumer_that_comes_late_is_let_go_at_once() -> None:
    world = World(producer(phase="Running", **GIVEN), consumer("c"))
    world.run(world.is_open)

    def late() -> None:
        world.put(consumer("late"))
        world.gates.observe(consumer("late"))

    world.run(lambda: world.is_open("late"), then=late, look=False)


def test_a_producer_that_ended_well_has_run() -> None:
    world = World(producer(phase="Succeeded", **GIVEN), consumer())
    world.run(world.is_open)


def test_who_waits_for_a_submission_waits_for_its_id() -> None:
    world = World(producer(phase="Running", **GIVEN), consumer("c", **waits_for("quantum-submit")), consumer("d"))
    world.run(lambda: world.is_open("d"))
    assert world.waits("c")
    world.run(world.is_open, then=lambda: world.put(producer(phase="Running", **GIVEN, **{JOB_ID: "task-7"})))
    found = world.pod("c")
    assert found is not None
    assert found.metadata.annotations[JOB_ID] == "task-7"


@pytest.mark.parametrize("phase", ["Failed", None])
def test_consumers_that_nobody_else_ends_go_with_their_producer(phase: str | None) -> None:
    world = World(*([producer(phase=phase)] if phase else []), consumer("c"), consumer("d"))
    world.run(lambda: world.pod("c") is None and world.pod("d") is None)
    assert {reason for _, reason, _ in world.events} == {"ProducerGone"}
    assert world.gates.counts["deleted"] == 2


def test_a_jobs_consumers_are_the_jobs_to_end() -> None:
    world = World(producer(phase="Failed", job="j"), consumer(job="j"), consumer("d"))
    world.run(lambda: world.pod("d") is None)
    assert world.waits("c")


def test_a_producer_that_is_tried_again_counts_and_that_of_another_job_does_not() -> None:
    former = producer("old", "Succeeded", job="former")
    world = World(former, producer("p", "Failed", job="j"), consumer(job="j"), consumer("e"))
    world.run(lambda: world.pod("e") is None)  # by then all was looked at, more than once
    assert world.waits("c")
    world.run(world.is_open, then=lambda: world.put(producer("p2", "Running", job="j", **GIVEN)))


def test_a_producer_has_time_to_come() -> None:
    world = World(consumer(), grace=3600)
    world.run(lambda: bool(world.gates._orphaned))
    assert world.waits()
    world.run(world.is_open, then=lambda: world.put(producer(phase="Running")))


def test_who_does_not_lead_writes_nothing() -> None:
    world = World(producer(phase="Running"), consumer())
    world.elected = False
    world.run(lambda: world.gates._pods is not None)
    assert world.waits()


class Refusing(MemoryCluster):
    """Refuses what is on its list first, one after the other."""

    answers: list[Exception]

    def _answer(self) -> None:
        if self.answers:
            raise self.answers.pop(0)

    async def open_gate(self, *args: Any) -> Pod:
        self._answer()
        return await super().open_gate(*args)

    async def list(self, kind: Any, **options: Any) -> Any:
        if self.answers and isinstance(self.answers[0], Gone):
            self._answer()
        return await super().list(kind, **options)


@pytest.mark.parametrize("error", [Conflict, NotFound, Forbidden, Gone])
def test_what_fails_is_retried(error: type[Exception]) -> None:
    cluster = Refusing([producer(phase="Running"), consumer()])
    cluster.answers = [error("no"), error("no")]
    world = World(cluster=cluster)
    world.run(world.is_open)
    said = [note for _, reason, note in world.events if reason == "ProducerNotFollowed"]
    assert len(said) == (1 if error in (Forbidden, NotFound) else 0), "the same is said once"
    assert all("docs/how-to/quantum-gangs.md" in note for note in said)


def test_a_watch_that_breaks_is_watched_again() -> None:
    world = World(producer(), consumer())

    def broken() -> None:
        world.cluster.end_watches()
        world.put(producer(phase="Running"))

    world.run(world.is_open, then=broken)


def test_pods_are_followed_only_while_a_consumer_waits() -> None:
    world = World(producer(phase="Running"), pod("other"), consumer(gates=()))
    world.run(lambda: True)
    assert world.gates._pods is None


def of_scheduler(made: Pod, name: str) -> Pod:
    return replace(made, spec=replace(made.spec, scheduler_name=name))


def test_consumers_of_another_scheduler_are_not_ours_to_let_go_or_to_delete() -> None:
    other, orphan = of_scheduler(consumer("other"), "another"), of_scheduler(consumer("lone", group="h"), "another")
    world = World(producer(phase="Running"), consumer(), other, orphan)
    world.gates.observe(consumer())
    world.run(world.is_open, look=False)
    assert world.waits("other")
    assert world.waits("lone")
    assert world.gates._pods is not None
    assert not world.gates._pods.any_waits({consumer().spec.scheduler_name}), "no producer is followed for them"


def test_who_loses_its_role_is_nobodys_consumer() -> None:
    world = World(producer(), consumer("c"), consumer("d"))

    def changes() -> None:
        world.put(pod("c", gates=(GATE,)))
        world.put(producer(phase="Running"))

    world.run(lambda: world.is_open("d"), then=changes)
    assert world.waits("c") is False
    found = world.pod("c")
    assert found is not None
    assert found.spec.scheduling_gates
    assert world.gates.counts == {"ungated": 1, "deleted": 0, "failed": 0}


class Counting(MemoryCluster):
    """Counts what it is asked to open; after so many, `then`. Refuses all where `refuses`."""

    asked = 0
    after = 0
    refuses = False

    def then(self) -> None:
        """Something happens."""

    async def open_gate(self, *args: Any) -> Pod:
        self.asked += 1
        if self.refuses:
            raise Forbidden("no")
        if self.asked == self.after:
            self.then()
        await asyncio.sleep(0)
        return await super().open_gate(*args)


def test_a_producer_that_fails_lets_no_more_of_many_go() -> None:
    cluster = Counting(
        [producer(phase="Running", job="j"), *(consumer(f"c{number}", job="j") for number in range(600))]
    )
    cluster.after = 100
    cluster.then = lambda: cluster.put(producer(phase="Failed", job="j"))  # type: ignore[method-assign, assignment]
    world = World(cluster=cluster)
    world.run(lambda: world.gates.counts["ungated"] >= 256)
    waiting = [each for each in cluster.objects(Pod) if waits(each)]
    assert len(waiting) == 600 - 256, "what is decided holds for so many"
    assert cluster.asked == 256, "no pod is written twice"


def test_many_that_are_let_go_are_each_written_once() -> None:
    cluster = Counting([producer(phase="Running"), *(consumer(f"c{number}") for number in range(600))])
    world = World(cluster=cluster)
    world.run(lambda: world.gates.counts["ungated"] == 600)
    assert cluster.asked == 600
    assert not any(map(waits, cluster.objects(Pod)))


def test_without_the_right_many_consumers_get_one_event_each_and_are_retried_ever_less_often() -> None:
    cluster = Counting([producer(phase="Running"), *(consumer(f"c{number}") for number in range(600))])
    cluster.refuses = True
    time = [0.0]
    world = World(cluster=cluster)
    world.gates = ConsumerGates(again=5, now=lambda: time[0])
    asked = []

    def look() -> bool:
        if cluster.asked % 600 == 0 and cluster.asked and cluster.asked not in asked:
            asked.append(cluster.asked)
            time[0] += 5 * 2 ** (len(asked) - 1)
            world.gates._changed.set()
        return len(asked) == 3

    world.run(look)
    assert len(world.events) == 600
    assert cluster.asked == 3 * 600


# ---------------------------------------------------------------------- decisions


def test_an_event_is_a_reason_to_look_at_its_own_group() -> None:
    def known_as(made: Pod) -> Pod:
        return replace(made, metadata=replace(made.metadata, uid=f"uid-{made.metadata.name}"))

    first, moved, last = (known_as(consumer("d", group="b")), known_as(consumer("d", group="c")),
                          known_as(consumer("d", group="c", gates=())))  # fmt: skip
    known = CoordinatedPods(
        [known_as(producer(group="a")), known_as(consumer(group="a")), first, known_as(pod("other"))]
    )
    assert [group for _, group, _ in known.changed] == ["a-producer", "b-producer"]
    known.changed = {}
    known.put(moved)  # people may change its annotations
    assert [group for _, group, _ in known.changed] == ["b-producer", "c-producer"]
    assert list(known.of(known.changed).values()) == [moved]
    assert known.is_now(moved)
    assert not known.is_now(first)
    known.drop("uid-c")
    name = moved.spec.scheduler_name
    assert known.any_waits({name})
    assert not known.any_waits({"another"})
    known.put(last)
    assert not known.any_waits({name})


def test_many_pending_producers_cost_each_a_look_and_not_one_for_each_consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    known = coordinated_pods._is_ready
    monkeypatch.setattr(coordinated_pods, "_is_ready", lambda *said: looks.append(said) or known(*said))
    decide([*(producer(f"p{number}") for number in range(50)), *(consumer(f"c{number}") for number in range(50))])
    assert len(looks) == 2 * 50


def test_pods_that_the_webhook_gave_no_role_are_in_no_group() -> None:
    assert group_of(pod("a", annotations={f"{PREFIX}coordination-role": "boss"})) is None
    assert group_of(pod("a", annotations={f"{PREFIX}coordination-role": "consumer"})) is None
    assert not keeps(pod("a", annotations=GIVEN), BACKEND)
    assert keeps(consumer(), BACKEND)
    assert not keeps(consumer(), f"{PREFIX}jobid")


_PRODUCERS = st.builds(
    lambda number, phase, job, annotated, submitted: producer(
        f"p{number}", phase, job=job, **({JOB_ID: "1"} if submitted else {}), **(GIVEN if annotated else {})
    ),
    st.integers(0, 99), st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]), st.sampled_from(["", "j", "k"]),
    st.booleans(), st.booleans(),
)  # fmt: skip
_CONSUMERS = st.builds(
    lambda number, job, submits, gated: consumer(
        f"c{number}", job=job, gates=(GATE,) if gated else (),
        **waits_for("quantum-submit" if submits else "producer-running")
    ),
    st.integers(0, 99), st.sampled_from(["", "j", "k"]), st.booleans(), st.booleans(),
)  # fmt: skip


@given(st.lists(st.one_of(_PRODUCERS, _CONSUMERS), max_size=8, unique_by=lambda one: one.metadata.name), st.booleans())
def test_each_consumer_gets_what_its_own_producers_say(pods: list[Pod], overdue: bool) -> None:
    groups = [("default", "g-producer", job) for job in ("", "j", "k")]
    turn = decide(pods, groups if overdue else [])
    for each in pods:
        if not waits(each):
            assert each.key not in turn.open.keys() | turn.delete.keys()
            continue
        own = [one for one in pods if group_of(one) == group_of(each) and not one.spec.scheduling_gates
               and one.metadata.name.startswith("p")]  # fmt: skip
        submits = each.metadata.annotations[f"{PREFIX}depends-on-kind"] == "quantum-submit"
        said = [one for one in own if not submits or JOB_ID in one.metadata.annotations]
        ready = [
            one for one in own if one.status.phase == "Succeeded" or (one in said and one.status.phase == "Running")
        ]
        alive = any(one.status.phase in ("Pending", "Running") for one in own)
        abandoned = not ready and not alive and not each.metadata.owner_references
        assert (each.key in turn.open) == bool(ready)
        assert (each.key in turn.delete) == (abandoned and overdue)
        if ready:
            backends = {one.metadata.annotations.get(BACKEND) for one in ready}
            assert turn.open[each.key][1].get(BACKEND) in backends


# ---------------------------------------------------------------------- in a scheduler


def test_a_scheduler_places_producer_and_consumers_and_leaves_consumers_what_they_were_told() -> None:
    cluster = FakeCluster()
    plugin = FluencePlugin(FluencePlugin.Arguments())
    cluster.add(producer(), consumer("c", size=2), consumer("d", size=2)).nodes(2, cpu="4")
    cluster.run(plugin)
    running = cluster.find(Pod, "p")
    assert running.spec.node_name
    assert not cluster.find(Pod, "c").spec.node_name
    said = replace(running.metadata, annotations=running.metadata.annotations | GIVEN)
    cluster.add(replace(running, metadata=said, status=replace(running.status, phase="Running")))

    async def served() -> None:
        async with plugin.serve(Runtime(lambda *_: None, lambda: True, cluster.memory)):
            await _seen(lambda: not any(map(waits, cluster.memory.objects(Pod))))

    asyncio.run(served())
    cluster.schedule()
    for name in ("c", "d"):
        found = cluster.find(Pod, name)
        assert found.spec.node_name
        assert found.metadata.annotations[BACKEND] == "aurora"
        assert found.metadata.annotations[REGION] == "east"
