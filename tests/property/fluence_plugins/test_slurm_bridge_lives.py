"""After any events of pods, jobs, requests and the scheduler: at rest, pods and jobs agree."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable

import pytest
from tests.unit.fluence_plugins.slurm_bridge.bridged import TICK, UNSURE, Bridged, group_of, slurm_of, waiting

from fluence_plugins.slurm_bridge.jobs.job_table import is_over, label_of
from fluence_plugins.slurm_bridge.names import FINALIZER
from fluence_plugins.slurm_bridge.slurm.errors import UnavailableError
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.testing import pod_group

from ...tools.examples import first

STEPS = 40


class Life:
    """One sequence of events, decided by its seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.slurm = slurm_of(*(f"n{number}" for number in range(6)))
        self.cluster = MemoryCluster()
        self.world = Bridged(cluster=self.cluster, slurm=self.slurm)
        self.world.__enter__()
        self.made = 0
        self.peoples = [self.slurm.hold("n5")]

    def restart(self) -> None:
        """Kill the scheduler at any point, and start another one that knows only the existing objects."""
        needed = self.world.needed
        self.world.kill()
        self.world = Bridged(cluster=self.cluster, slurm=self.slurm)
        self.world.needed = needed
        self.world.__enter__()

    def some_pod(self, *, runs: bool | None = None) -> str | None:
        found = [one.metadata.name for one in self.world.pods()
                 if not is_over(one) and runs in (None, bool(one.spec.node_name))]  # fmt: skip
        return self.chance.choice(found) if found else None

    # ------------------------------------------------------------------ events

    def pod_comes(self) -> None:
        self.made += 1
        name = f"p{self.chance.randrange(8)}"
        if not self.world.is_there(name):
            self.world.put(waiting(name, uid=f"u{self.made}"))

    def gang_comes(self) -> None:
        self.made += 1
        name, size = f"g{self.made}", self.chance.randint(2, 3)
        self.world.needed[f"PodGroup default/{name}"] = size
        self.world.put(
            *(waiting(f"{name}-{number}", uid=f"u{self.made}-{number}", group=name) for number in range(size))
        )
        self.cluster.put(pod_group(name, size))

    def pod_ends(self) -> None:
        if (name := self.some_pod(runs=True)) is not None:
            self.world.end(name, self.chance.choice(["Succeeded", "Failed"]))

    def pod_is_deleted(self) -> None:
        if (name := self.some_pod()) is not None:
            self.world.delete(name)

    def kubelets_end_pods(self) -> None:
        self.world.finish()

    def job_ends(self) -> None:
        if jobs := self.world.live_jobs():
            self.slurm.end(self.chance.choice(jobs).job_id, self.chance.choice(["CANCELLED", "TIMEOUT"]))

    def job_is_forgotten(self) -> None:
        if ended := [number for number, kept in self.slurm.kept.items() if kept.job.ended]:
            self.slurm.forget(self.chance.choice(ended))

    def request_fails(self) -> None:
        method = self.chance.choice(["submit", "update", "cancel", "job", "jobs", "nodes"])
        lost = UnavailableError(method, "lost", sent=self.chance.random() < 0.5)
        self.slurm.fails.setdefault(method, deque()).append(lost)

    def answer_is_lost(self) -> None:
        self.slurm.loses.append(self.chance.choice(["submit", "update", "cancel"]))

    def slurm_steps(self) -> None:
        self.slurm.step()

    def slurm_goes_or_comes(self) -> None:
        self.slurm.down = not self.slurm.down

    def time_passes(self) -> None:
        self.world.rest(self.chance.choice([TICK, 2 * TICK, 6.0]))

    def a_user_holds_or_frees_a_node(self) -> None:
        running = [number for number in self.peoples
                   if number in self.slurm.kept and not self.slurm.kept[number].job.ended]  # fmt: skip
        if running and self.chance.random() < 0.5:
            self.slurm.end(self.chance.choice(running))
        free = [name for name in self.slurm.nodes_by_name if not self.slurm._taken(name)]
        if free:
            self.peoples.append(self.slurm.hold(self.chance.choice(free)))

    def one_thing(self) -> None:
        things: list[tuple[int, Callable[[], None]]] = [
            (5, self.pod_comes), (2, self.gang_comes), (3, self.pod_ends), (2, self.pod_is_deleted),
            (2, self.kubelets_end_pods), (1, self.job_ends), (1, self.job_is_forgotten), (2, self.request_fails),
            (2, self.answer_is_lost), (5, self.slurm_steps), (1, self.slurm_goes_or_comes), (6, self.time_passes),
            (1, self.a_user_holds_or_frees_a_node), (1, self.restart),
        ]  # fmt: skip
        self.chance.choices([thing for _, thing in things], [weight for weight, _ in things])[0]()

    # ------------------------------------------------------------------ checks

    def come_to_rest(self) -> None:
        """Stop all faults, let much time pass, and delete the terminating pods."""
        self.slurm.down, self.slurm.fails, self.slurm.loses = False, {}, []
        for _ in range(3):
            self.world.live(UNSURE)
            self.world.finish()
        self.world.live(16)

    def check(self) -> None:
        kept = self.slurm.kept
        live = {one.metadata.uid: one for one in self.world.pods() if not is_over(one)}
        jobs = {job.job_id: job for job in self.world.live_jobs()}
        named = Counter(pod.uid for job in jobs.values() if job.comment for pod in job.comment.pods if pod.uid in live)
        groups = Counter(map(group_of, live.values()))
        begun = {group_of(one) for one in live.values() if one.spec.node_name}
        lacking = {group for group, count in groups.items() if count < self.world.needed.get(group, 1)} - begun
        whole = {uid: one for uid, one in live.items() if group_of(one) not in lacking}
        assert dict.fromkeys(whole, 1) == {uid: named[uid] for uid in whole}, "every live pod has exactly one job"
        assert max(named.values(), default=1) == 1, "a pod of an incomplete gang has at most one job"
        for number, job in jobs.items():
            assert job.comment is not None
            assert any(pod.uid in live for pod in job.comment.pods), f"job {number} has a live pod"
        for one in whole.values():
            assert label_of(one) in jobs, f"{one.key} names its job"
            assert FINALIZER in one.metadata.finalizers
            job = jobs[label_of(one) or 0]
            assert not one.spec.node_name or (job.allocated and one.spec.node_name in job.nodes), "its job runs there"
            assert one.spec.node_name or job.pending, "a pod whose job has nodes is on one of them"
        for one in self.world.pods():
            assert one.metadata.uid in live or FINALIZER not in one.metadata.finalizers, "no job is left to cancel"
        assert not [number for number in self.peoples if number in kept and "CANCELLED" in kept[number].job.states]
        assert lacking >= self.world.bridge.facts().problems.keys()


@pytest.mark.parametrize("seed", first(range(60)))
def test_at_rest_pods_and_jobs_agree(seed: int) -> None:
    life = Life(seed)
    try:
        for _ in range(STEPS):
            life.one_thing()
            if life.chance.random() < 0.5:
                life.world.run_pending()
        life.come_to_rest()
        life.check()
    finally:
        life.world.kill()
