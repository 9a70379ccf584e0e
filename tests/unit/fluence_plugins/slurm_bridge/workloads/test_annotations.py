"""Annotations of a workload for its Slurm job."""

import re
from pathlib import Path

import pytest

from fluence_plugins.slurm_bridge.names import JOB
from fluence_plugins.slurm_bridge.slurm.gres import Gres
from fluence_plugins.slurm_bridge.workloads.annotations import ANNOTATIONS, JobAnnotations, read
from fluence_plugins.slurm_bridge.workloads.workload import TranslationError, Workload
from session_scheduler.model.meta import ObjectMeta

PAGE = (Path(__file__).parents[5] / "docs/reference/slurm-bridge.md").read_text()


def job(name: str = "train", **annotations: str) -> Workload:
    said = {JOB + key.replace("_", "-"): text for key, text in annotations.items()}
    return Workload(api_version="batch/v1", kind="Job",
                    metadata=ObjectMeta(name=name, namespace="physics", annotations=said))  # fmt: skip


GOOD = [
    ("account", "schedmd", "account", "schedmd"),
    ("constraints", "[rack1|rack2]&ib", "constraints", "[rack1|rack2]&ib"),
    ("cpu-per-task", "4", "cpus_per_task", 4),
    ("cpu-per-task", "1500m", "cpus_per_task", 2),
    ("cpu-per-task", "65533", "cpus_per_task", 65533),
    ("exclusive", "false", "exclusive", False),
    ("exclusive", " False\n", "exclusive", False),
    ("exclusive", "true", "exclusive", True),
    ("gres", "GPU:V100:2", "gres", (Gres("GPU", "V100", "2"),)),
    ("gres", "none", "gres", ()),
    ("group-id", "physicists", "group_id", "physicists"),
    ("group-id", "0", "group_id", "0"),
    ("job-name", "research", "name", "research"),
    ("job-name", "x" * 1024, "name", "x" * 1024),
    ("licenses", "matlab:2,ansys", "licenses", "matlab:2,ansys"),
    ("max-nodes", "3", "maximum_nodes", 3),
    ("mem-per-node", "8Gi", "memory_mib", 8192),
    ("mem-per-node", "1", "memory_mib", 1),
    ("mem-per-node", "1000M", "memory_mib", 954),
    ("mem-per-node", "0", "memory_mib", 0),
    ("min-nodes", "1", "minimum_nodes", 1),
    ("partition", "debug\n", "partition", "debug"),
    ("priority", "0", "priority", 0),
    ("priority", "4294967293", "priority", 4294967293),
    ("qos", "high", "qos", "high"),
    ("reservation", "maintenance", "reservation", "maintenance"),
    ("timelimit", "60", "time_limit_minutes", 60),
    ("user-id", "1000", "user_id", "1000"),
    ("user-id", "alice@example.org", "user_id", "alice@example.org"),
    ("wckey", "project-7", "wckey", "project-7"),
]

BAD = [
    ("account", "a\nb", "are not printable"),
    ("constraints", "ib\x00", "are not printable"),
    ("cpu-per-task", "0", "expected 1 to 65533 CPUs"),
    ("cpu-per-task", "65534", "expected 1 to 65533 CPUs"),
    ("cpu-per-task", "-1", "negative"),
    ("cpu-per-task", "many", "is not a valid quantity"),
    ("exclusive", "no", "expected true or false"),
    ("gres", "gpu:two:three:4", "expected a generic resource"),
    ("gres", ",", "names no resource"),
    ("gres", "gpu\n:2", "are not printable"),
    ("group-id", "-1", "expected a name, or a number"),
    ("group-id", "4294967294", "from 0 to 4294967293"),
    ("job-name", "é" * 513, "more than 1024 bytes"),
    ("licenses", "l" * 1025, "more than 1024 bytes"),
    ("max-nodes", "0", "from 1 to 65533"),
    ("max-nodes", "2-4", "from 1 to 65533"),
    ("mem-per-node", "-8Gi", "negative"),
    ("mem-per-node", "8GB", "is not a valid quantity"),
    ("mem-per-node", "9Ei", "too large"),
    ("min-nodes", "-1", "from 1 to 65533"),
    ("min-nodes", "１", "from 1 to 65533"),
    ("partition", "p" * 1025, "more than 1024 bytes"),
    ("priority", "4294967294", "from 0 to 4294967293"),
    ("priority", "-5", "from 0 to 4294967293"),
    ("qos", "\x1b[31m", "are not printable"),
    ("reservation", "r\ts", "are not printable"),
    ("timelimit", "0", "from 1 to 4294967293"),
    ("timelimit", "1:00:00", "from 1 to 4294967293"),
    ("timelimit", "9" * 5000, "from 1 to 4294967293"),
    ("user-id", "alice bob", "expected a name, or a number"),
    ("user-id", "99999999999", "from 0 to 4294967293"),
    ("wckey", "w\x7f", "are not printable"),
]


@pytest.mark.parametrize(("annotation", "text", "field", "value"), GOOD)
def test_valid_annotations_are_parsed(annotation: str, text: str, field: str, value: object) -> None:
    asked = read(job(**{annotation: text}))
    assert getattr(asked, field) == value
    others = {name: getattr(JobAnnotations(), name) for name in JobAnnotations.__dataclass_fields__ if name != field}
    assert {name: getattr(asked, name) for name in others} == others


@pytest.mark.parametrize(("annotation", "text", "problem"), BAD)
def test_invalid_annotations_are_errors_in_one_line(annotation: str, text: str, problem: str) -> None:
    with pytest.raises(TranslationError) as raised:
        read(job(**{annotation: text}))
    message = str(raised.value)
    assert message.startswith(f"Job physics/train: metadata.annotations[slurmjob.slinky.slurm.net/{annotation}]: ")
    assert problem in message
    assert message.isprintable()
    assert len(message) < 400


@pytest.mark.parametrize("cases", [GOOD, BAD])
def test_every_annotation_has_good_and_bad_cases(cases: list[tuple[str, ...]]) -> None:
    assert {JOB + case[0] for case in cases} == set(ANNOTATIONS)
    assert len(ANNOTATIONS) == 18


@pytest.mark.parametrize("annotation", ANNOTATIONS)
def test_an_empty_annotation_is_ignored(annotation: str) -> None:
    assert read(job(**{annotation.removeprefix(JOB): " \n"})) == JobAnnotations()


def test_annotations_of_other_projects_are_ignored() -> None:
    workload = Workload(api_version="v1", kind="Pod", metadata=ObjectMeta(annotations={"account": "a", "x/qos": "b"}))
    assert read(workload) == JobAnnotations()


def pod_group(*above: Workload, **annotations: str) -> Workload:
    return Workload(api_version="scheduling.k8s.io/v1alpha2", kind="PodGroup", above=above,
                    metadata=job("group", **annotations).metadata)  # fmt: skip


def test_annotations_of_a_pod_groups_owner_override_its_own() -> None:
    above = job("made-from", account="highest"), job("owner", account="high", qos="of-the-owner")
    asked = read(pod_group(*above, account="low", qos="low", wckey="of-the-group"))
    assert asked == JobAnnotations(account="highest", qos="of-the-owner", wckey="of-the-group")


def test_a_wrong_annotation_names_the_object_that_has_it() -> None:
    with pytest.raises(TranslationError, match=r"^Job physics/owner: "):
        read(pod_group(job("owner", priority="high")))


def test_the_reference_page_has_all_annotations_in_its_table_and_no_others() -> None:
    table = PAGE.partition("## Annotations")[2].partition("\n\n| ")[2].partition("\n\n")[0]
    assert [JOB + name for name in re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE)] == list(ANNOTATIONS)
