"""Pods go where a real Slurm says, through a real API server; and what becomes of them when either goes away."""

from __future__ import annotations

import time
from statistics import median, quantiles

import pytest

from ..controlplane.proxy import Fault
from .bridge_world import BridgeWorld

PROMPT = 3.0
"""Seconds between Slurm's allocation and the bind."""
MANY = 200
OUTAGE = 30.0


def test_the_documents_job_is_bound_to_the_node_that_slurm_chose(world: BridgeWorld) -> None:
    world.add_hosts(4)
    world.run()
    world.create_job("job-sleep-single", {"job-name": "job-sleep-single", "account": "schedmd"})
    pod = world.pod_of("job-sleep-single")
    world.wait_bound(pod)
    (job,) = world.jobs_of(pod)
    assert (job["name"], job["account"], job["nodes"]) == ("job-sleep-single", "schedmd", world.host_of(pod))
    world.check_agrees()
    world.end(pod)
    world.wait_no_jobs()
    world.until("the finalizer's end", lambda: not world.marks(pod)[2])


def test_a_group_waits_for_somebody_elses_job_and_starts_whole_and_promptly(world: BridgeWorld) -> None:
    world.add_hosts(4)
    other = world.occupy_hosts(4)
    world.run()
    world.create_bridged_gang("train", 4)
    said = world.wait_refused("train-0", "is pending: Resources")
    assert said.startswith("Slurm job ")
    assert not world.places("train")
    world.peer.cancel(other)
    job = world.until("nodes for the group", lambda: world.jobs_of("train-0")[0]["nodes"] or None)
    allocated = time.monotonic()
    assert job == "k8s-[0-3]"
    world.wait_whole("train", 4)
    assert time.monotonic() - allocated < PROMPT
    assert [world.host_of(f"train-{n}") for n in range(4)] == ["k8s-0", "k8s-1", "k8s-2", "k8s-3"]
    world.check_agrees()


def test_a_job_that_is_cancelled_in_slurm_ends_its_pods(world: BridgeWorld) -> None:
    world.add_hosts(2)
    world.run()
    world.create_bridged_gang("train", 2)
    world.wait_whole("train", 2)
    world.peer.cancel(world.jobs_of("train-0")[0]["job_id"])
    world.wait_gone("train-0", "train-1")
    assert "has ended: CANCELLED" in world.wait_event("train-0", "SlurmJobEnded")["note"]


def test_a_waiting_job_that_is_cancelled_in_slurm_is_made_anew(world: BridgeWorld) -> None:
    world.add_hosts(1)
    other = world.occupy_hosts(1)
    world.run()
    world.bridged("one", device=False)
    world.wait_refused("one", "is pending")
    before = world.jobs_of("one")[0]["job_id"]
    world.peer.cancel(before)
    world.until("another job", lambda: any(job["job_id"] != before for job in world.jobs_of("one")))
    world.peer.cancel(other)
    world.wait_bound("one")
    world.check_agrees()


def test_a_deleted_pod_takes_its_waiting_job_along(world: BridgeWorld) -> None:
    world.add_hosts(1)
    world.occupy_hosts(1)
    world.run()
    world.bridged("one", device=False)
    world.wait_refused("one", "is pending")
    world.until("the finalizer", lambda: world.marks("one")[2])
    world.delete_pod("one")
    world.wait_no_jobs()
    world.wait_gone("one")


def test_a_job_has_the_members_that_a_group_has_when_it_starts(world: BridgeWorld) -> None:
    world.add_hosts(3)
    other = world.occupy_hosts(3)
    world.run()
    world.create_bridged_gang("train", 2)
    world.wait_refused("train-0", "is pending")
    world.bridged("train-2", "train", device=False)
    world.until("a job of three", lambda: len(world.jobs_of("train-2")) == 1)
    assert len(world.jobs()) == 2, "it was changed, and none was added"
    world.peer.cancel(other)
    world.wait_whole("train", 3)
    assert len({world.host_of(f"train-{n}") for n in range(3)}) == 3
    world.check_agrees()


def test_it_takes_over_what_the_go_bridge_has_begun(world: BridgeWorld) -> None:
    """One pod that runs, one whose job has its node, and one whose job waits; all as slurm-bridge 1.2 marks them."""
    world.add_hosts(3)
    other = world.occupy_hosts(1)
    numbers = {
        name: world.begun_by_the_go_bridge(name, host) for name, host in (("runs", 1), ("placed", 2), ("waits", 0))
    }
    world.bind_as_admin("runs", world.nodes[1])
    world.until("nodes for two", lambda: len(world.jobs("RUNNING")) == 3)
    world.run()
    world.wait_bound("placed")
    world.wait_refused("waits", f"Slurm job {numbers['waits']} is pending")
    world.peer.cancel(other)
    world.wait_bound("waits")
    assert [world.host_of(name) for name in ("runs", "placed", "waits")] == ["k8s-1", "k8s-2", "k8s-0"]
    assert {name: world.marks(name)[0] for name in numbers} == {name: str(number) for name, number in numbers.items()}
    assert {job["job_id"] for job in world.jobs()} == set(numbers.values())
    world.end("runs")
    world.until("the finalizer's end", lambda: not world.marks("runs")[2])
    assert {job["job_id"] for job in world.jobs()} == {numbers["placed"], numbers["waits"]}


@pytest.mark.parametrize(
    ("annotations", "why"),
    [
        ({"partition": "nowhere"}, "partition"),
        ({"cpu-per-task": "many"}, "slurmjob.slinky.slurm.net/cpu-per-task"),
        ({"cpu-per-task": "4000"}, "is pending: PartitionConfig"),
        ({"constraints": "a&nonsense"}, "eature"),
        ({"gres": "gpu:none:9"}, "Slurm rejects the job: "),
    ],
)
def test_what_cannot_be_is_said_on_the_pod_and_not_asked_again_and_again(
    world: BridgeWorld, annotations: dict[str, str], why: str
) -> None:
    world.add_hosts(1)
    scheduler = world.run()
    world.create_job("bad", annotations)
    pod = world.pod_of("bad")
    said = world.wait_refused(pod, why)
    assert "a Slurm job is being submitted" not in said
    before = scheduler.metrics().get('fluence_slurm_requests_total{request="submit",result="error"}', 0)
    time.sleep(2)  # as long as anything could go on asking
    after = scheduler.metrics().get('fluence_slurm_requests_total{request="submit",result="error"}', 0)
    assert after - before <= 1
    assert len(world.jobs()) == (1 if "is pending" in why else 0)


def test_a_mended_annotation_is_noticed(world: BridgeWorld) -> None:
    world.add_hosts(1)
    world.run()
    world.create_job("bad", {"cpu-per-task": "many"})
    pod = world.pod_of("bad")
    world.wait_refused(pod, "cpu-per-task")
    world.annotate_job("bad", "cpu-per-task", "2")
    world.wait_bound(pod)
    assert world.jobs_of(pod)[0]["cpus_per_task"]["number"] == 2


@pytest.mark.parametrize("fault", [Fault.CALL_BEFORE, Fault.CALL_AFTER], ids=["before", "after"])
@pytest.mark.parametrize("number", range(1, 7))
def test_a_scheduler_killed_at_any_write_makes_one_job(world: BridgeWorld, number: int, fault: Fault) -> None:
    """Reasons, labels and binds of two pods: its submission is among them."""
    world.add_hosts(2)
    scheduler = world.new_scheduler()
    strike = world.proxies[0].at(number, fault, call=scheduler.kill)
    scheduler.start()
    world.create_bridged_gang("train", 2)
    world.wait_whole("train", 2)
    assert strike.struck.is_set()
    world.check_agrees()
    assert len(world.jobs_ever("train-0")) == 1


def test_while_slurmrestd_is_away_nothing_is_lost(world: BridgeWorld) -> None:
    world.add_hosts(2)
    world.run()
    for name in ("done", "runs"):
        world.bridged(name, device=False)
    world.wait_bound("done", "runs")
    with world.peer.without_rest():
        began = time.monotonic()
        world.end("done")
        world.bridged("new", device=False)
        world.wait_refused("new", "Slurm is unavailable")
        world.until("the end of the outage", lambda: time.monotonic() - began > OUTAGE, 2 * OUTAGE)
        assert world.node_of("runs"), "it runs on"
        assert world.marks("done")[2], "its job has not been updated yet"
    world.wait_bound("new", seconds=60)
    world.until("the finalizer's end", lambda: not world.marks("done")[2])
    world.check_agrees()


@pytest.mark.parametrize("how", ["restarted", "killed"])
def test_slurmctld_may_be_started_anew(world: BridgeWorld, how: str) -> None:
    world.add_hosts(2)
    other = world.occupy_hosts(1)
    world.run()
    world.bridged("runs", device=False)
    world.wait_bound("runs")
    world.create_bridged_gang("waits", 2)
    world.wait_refused("waits-0", "is pending")
    if how == "restarted":
        world.peer.restart_controller()
    else:
        world.peer.wait_saved("k8s-0", "k8s-1", f"{world.namespace}/waits-0")
        world.peer.kill_controller()
        world.peer.start_controller()
    world.peer.cancel(other)
    world.end("runs")
    world.wait_whole("waits", 2)
    world.check_agrees()
    assert len(world.jobs_ever("waits-0")) == 1


def test_a_token_that_has_expired_is_told_and_its_successor_is_used(world: BridgeWorld) -> None:
    world.add_hosts(1)
    world.run()
    world.peer.write_token(-10)
    world.bridged("one", device=False)
    said = world.wait_refused("one", "Slurm is unavailable")
    assert str(world.peer.token_file) in said
    assert world.peer.token_file.read_text().strip() not in said
    world.peer.write_token()
    world.wait_bound("one", seconds=60)


def test_two_hundred_jobs_are_bound_as_soon_as_slurm_has_nodes_for_them(world: BridgeWorld) -> None:
    world.add_hosts(32)
    scheduler = world.run()
    for number in range(MANY):
        world.create_job(f"j{number}", {"exclusive": "false"})
    allocated: dict[int, float] = {}
    bound: dict[int, float] = {}

    def all_bound() -> bool:
        now = time.monotonic()
        for job in world.jobs("RUNNING"):
            allocated.setdefault(job["job_id"], now)
        for pod in world.pods():
            if pod["spec"].get("nodeName"):
                number = int(world.label_of(pod))
                allocated.setdefault(number, now)  # at the earliest, if the list does not show it yet
                bound.setdefault(number, time.monotonic())
        return len(bound) == MANY

    world.until("two hundred bound pods", all_bound, 120)
    waited = [max(0.0, bound[number] - allocated[number]) for number in bound]
    reported = f"median {median(waited):.2f} s, 99 % {quantiles(waited, n=100)[98]:.2f} s, most {max(waited):.2f} s"
    print(reported)
    assert median(waited) < 1, reported
    assert quantiles(waited, n=100)[98] < PROMPT, reported
    assert scheduler.metrics()['fluence_slurm_requests_total{request="submit",result="success"}'] == MANY
    world.check_agrees()
