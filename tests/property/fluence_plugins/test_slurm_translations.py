"""Any workload becomes a Slurm job or an error with the reason, and always the same one."""

from __future__ import annotations

import random
from dataclasses import fields

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.tools.slurm_workloads import pod_of, workload

from fluence_plugins.slurm_bridge.names import JOB
from fluence_plugins.slurm_bridge.slurm.gres import known_of, parse, to_text
from fluence_plugins.slurm_bridge.slurm.placeholder import Placeholder
from fluence_plugins.slurm_bridge.workloads.annotations import (
    ANNOTATIONS,
    MOST_CPUS,
    MOST_NODES,
    MOST_NUMBER,
    MOST_TEXT,
)
from fluence_plugins.slurm_bridge.workloads.translation import Terms, group_of, ordered, translate
from fluence_plugins.slurm_bridge.workloads.workload import TranslationError, Workload
from session_scheduler.model.objects import Pod

NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.sampled_from(["0", "65533", "65534", "4294967293", "4294967294", "1e3", "5e99", "8Gi", "15Ei", "1m", "+1", "٣"]),
)
RESOURCE_WORDS = st.lists(
    st.sampled_from(["gres", "GPU", "gpu", "v100", "V100", "/", ":", "=", ",", "2", "4k", "none", " "])
)
TEXTS = st.one_of(st.text(), st.text(min_size=MOST_TEXT), NUMBERS, RESOURCE_WORDS.map("".join))
SAID = st.dictionaries(st.sampled_from([one.removeprefix(JOB) for one in ANNOTATIONS]), TEXTS)
INDEXES = st.one_of(st.none(), st.integers(0, 12).map(str), st.text())
LABELS = ("batch.kubernetes.io/job-completion-index", "apps.kubernetes.io/pod-index",
          "leaderworkerset.sigs.k8s.io/worker-index")  # fmt: skip


@st.composite
def some_pods(draw: st.DrawFn) -> list[Pod]:
    names = draw(st.lists(st.from_regex(r"[a-c]{1,2}[0-9]{0,3}(-[0-9]{1,3})?", fullmatch=True), min_size=1, max_size=6,
                          unique=True))  # fmt: skip
    owners = [None, workload("Job", "j2"), workload("Job", "j10")]
    pods = []
    for name in names:
        labels = {key: index for key in LABELS if (index := draw(INDEXES)) is not None}
        cpu, memory = draw(st.sampled_from(["0", "1", "1500m"])), draw(st.sampled_from(["0", "1", "7Gi"]))
        gpus = draw(st.integers(0, 3))
        pods.append(pod_of(draw(st.sampled_from(owners)), name, labels=labels, cpu=cpu, memory=memory,
                           requests={"nvidia.com/gpu": gpus}))  # fmt: skip
    return pods


def translated(root: Workload, pods: list[Pod], terms: Terms) -> Placeholder | str:
    try:
        return translate(root, pods, terms)
    except TranslationError as error:
        return str(error)


@given(SAID, st.sampled_from([Terms(), Terms(known_gres={("gpu", "V100"), ("gpu", "")})]))
def test_any_annotations_give_a_job_within_slurms_limits_or_an_error_of_one_line(
    marks: dict[str, str], terms: Terms
) -> None:
    root = workload("Job", "train", asked=marks)
    job = translated(root, [pod_of(root, "p")], terms)
    if isinstance(job, str):
        assert job.startswith("Job physics/train: ")
        assert job.isprintable()
        return
    assert 1 <= job.minimum_nodes == job.maximum_nodes <= MOST_NODES
    assert job.cpus_per_task is None or 1 <= job.cpus_per_task <= MOST_CPUS
    assert job.time_limit_minutes is None or 1 <= job.time_limit_minutes <= MOST_NUMBER
    assert job.priority is None or 0 <= job.priority <= MOST_NUMBER
    assert job.memory_mib is None or job.memory_mib >= 0
    texts = [value for field in fields(job) if isinstance(value := getattr(job, field.name), str)]
    assert all(text.isprintable() for text in texts)
    assert all(len(text.encode()) <= MOST_TEXT for text in texts if text != job.gres)


@given(some_pods(), SAID, st.randoms(use_true_random=False))
def test_the_order_of_pods_changes_nothing(pods: list[Pod], marks: dict[str, str], shuffling: random.Random) -> None:
    root = workload("PodGroup", "ring", asked=marks)
    first = translated(root, pods, Terms())
    shuffled = list(pods)
    shuffling.shuffle(shuffled)
    assert ordered(shuffled) == ordered(pods)
    assert translated(root, shuffled, Terms()) == first
    assert translated(root, pods, Terms()) == first


@given(st.text() | RESOURCE_WORDS.map("".join))
def test_text_written_for_slurm_round_trips(text: str) -> None:
    try:
        found = parse(text)
    except ValueError:
        return
    said = to_text(found)
    assert said == (",".join(str(one) for one in parse(said)) if found else "")


@given(st.lists(st.text()))
def test_any_resources_of_a_node_can_be_read(nodes: list[str]) -> None:
    assert all(name for name, _ in known_of(nodes))


@given(st.dictionaries(st.sampled_from(["name", "group-index", "worker-index"]), st.text()))
def test_any_labels_give_a_group_or_none(marks: dict[str, str]) -> None:
    pod = pod_of(workload("StatefulSet", "s"), "p")
    labels = {f"leaderworkerset.sigs.k8s.io/{key}": text for key, text in marks.items()}
    pod = replace(pod, metadata=replace(pod.metadata, labels=labels))
    assert group_of(pod, pod.metadata.owner_references) == group_of(pod, pod.metadata.owner_references)
