"""Messages to and from slurmrestd, field by field."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from fluence_plugins.slurm_bridge.slurm.admin_comment import COMMENT_CHARACTERS, decode_comment, encode_comment
from fluence_plugins.slurm_bridge.slurm.errors import InvalidRequestError
from fluence_plugins.slurm_bridge.slurm.messages import NodeMessage, UnreadableError, job_message, jobs_of, nodes_of
from fluence_plugins.slurm_bridge.slurm.model import Gres, Job, JobComment, JobDefaults, Unreadable
from fluence_plugins.slurm_bridge.slurm.node_shares import shares_of, shares_of_job
from fluence_plugins.slurm_bridge.slurm.placeholder import Placeholder, PodIdentity

from ..answering import Exchange

FIXED = JobDefaults(cluster="one", mcs_label="kubernetes", partition="slurm-bridge")
POD = PodIdentity("default", "a", "uid-a")
BARE = Placeholder(name="a", pods=(POD,), minimum_nodes=1, maximum_nodes=1, exclusive=False)


def raw(*items: Any) -> list[msgspec.Raw]:
    return [msgspec.Raw(item if isinstance(item, bytes) else json.dumps(item).encode()) for item in items]


def sent(job: Placeholder, *candidates: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(msgspec.json.encode(job_message(job, FIXED, candidates)))
    return found


# ------------------------------------------------------------------ requests


def test_unset_fields_are_not_sent() -> None:
    assert sent(BARE) == {
        "name": "a",
        "admin_comment": '{"pods":["default/a"],"uids":["uid-a"],"cluster":"one"}',
        "nodes": "1",
        "minimum_nodes": 1,
        "maximum_nodes": 1,
        "tasks_per_node": 1,
        "current_working_directory": "/tmp",
        "partition": "slurm-bridge",
        "mcs_label": "kubernetes",
        "flags": ["EXTERNAL_JOB"],
    }


def test_all_set_fields_are_sent() -> None:
    full = replace(
        BARE,
        cpus_per_task=2,
        memory_mib=0,
        gres="gres/gpu=1",
        account="acme",
        constraints="fast",
        exclusive=True,
        user_id="1000",
        group_id="100",
        licenses="matlab:1",
        partition="debug",
        priority=0,
        qos="high",
        reservation="monday",
        time_limit_minutes=5,
        wckey="key",
    )
    message = sent(full, "k8s-1", "k8s-0")
    assert {key: message[key] for key in message if key not in sent(BARE)} == {
        "required_nodes": ["k8s-1", "k8s-0"],
        "cpus_per_task": 2,
        "memory_per_node": {"set": True, "infinite": False, "number": 0},
        "tres_per_node": "gres/gpu=1",
        "account": "acme",
        "constraints": "fast",
        "shared": ["none"],
        "user_id": "1000",
        "group_id": "100",
        "licenses": "matlab:1",
        "priority": {"set": True, "infinite": False, "number": 0},
        "qos": "high",
        "reservation": "monday",
        "time_limit": {"set": True, "infinite": False, "number": 5},
        "wckey": "key",
    }
    assert message["partition"] == "debug"


def test_an_update_of_a_node_has_only_the_changed_fields() -> None:
    assert json.loads(msgspec.json.encode(NodeMessage(state=("UNDRAIN",)))) == {"state": ["UNDRAIN"]}
    assert json.loads(msgspec.json.encode(NodeMessage(reason="", comment=""))) == {"reason": "", "comment": ""}


# ------------------------------------------------------------------ admin_comment


def test_a_comment_comes_back_as_it_was_written() -> None:
    comment = JobComment((POD, PodIdentity("other", "b", "")), "one")
    assert decode_comment(encode_comment(comment)) == comment


def test_the_comment_of_the_original_slurm_bridge_has_only_pods() -> None:
    assert decode_comment('{"pods":["ns/a","ns/b"]}') == JobComment((PodIdentity("ns", "a"), PodIdentity("ns", "b")))
    assert decode_comment('{"pods":["ns/a"],"later":{"x":[1]}}') == JobComment((PodIdentity("ns", "a"),))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "null",
        "somebody's words",
        '{"pods":null}',
        '{"pods":[]}',
        '{"pods":["a"]}',
        '{"pods":["a/b/c"]}',
        '{"pods":["/b"]}',
        '{"pods":["a/"]}',
        '{"pods":[1]}',
        '{"pods":"a/b"}',
        '{"pods":["a/b"],"uids":["u","v"]}',
        '{"pods":["a/b"],"cluster":7}',
        '{"pods":["a/b"]',
        '{"pods":["a/b"],"deep":' + "[" * 100_000,
        '{"pods":["' + "a" * COMMENT_CHARACTERS + '/b"]}',
    ],
)
def test_a_comment_that_no_slurm_bridge_wrote_is_none(text: str) -> None:
    assert decode_comment(text) is None


def test_more_pods_than_a_comment_can_name_are_rejected() -> None:
    pods = tuple(PodIdentity("namespace", f"{'n' * 200}{index}", "u" * 36) for index in range(5000))
    with pytest.raises(InvalidRequestError, match="lists 5000 pods has"):
        job_message(replace(BARE, pods=pods), FIXED, ())


# ------------------------------------------------------------------ jobs and nodes


def test_an_unreadable_job_keeps_its_number_and_hides_no_other() -> None:
    (good,) = Exchange.of("job_running").answer["jobs"]
    bad: list[Any] = [
        {**good, "job_id": 1, "job_state": "RUNNING"},
        {**good, "job_id": 2, "nodes": "k8s-[0-"},
        {**good, "job_id": 3, "nodes": "k8s-[0-999999999]"},
        {**good, "job_id": 4, "start_time": "tomorrow"},
        {**good, "job_id": 5, "start_time": {"set": True, "number": 1e999}},
        {**good, "job_id": "six"},
        "a job",
        None,
        b'{"job_id": 9, "name": "\xff"}',
        b'{"job_id": 10, "name": ' + b"[" * 100_000,
    ]
    bad[4] = json.dumps(bad[4]).replace("Infinity", "1e999").encode()
    found, unreadable = jobs_of(raw(*bad, good))
    assert [job.job_id for job in found] == [good["job_id"]]
    assert [item.key for item in unreadable] == [1, 2, 3, 4, 5, None, None, None, 9, None]
    assert all(0 < len(item.why) < 400 for item in unreadable)


def test_an_unreadable_node_keeps_its_name_and_hides_no_other() -> None:
    good = Exchange.of("nodes").answer["nodes"][0]
    found, unreadable = nodes_of(raw({**good, "name": "odd", "cpus": "many"}, good, 7))
    assert [node.name for node in found] == [good["name"]]
    assert [item.key for item in unreadable] == ["odd", None]


def test_fields_that_slurm_omits_have_defaults() -> None:
    found, unreadable = jobs_of(raw({"job_id": 7, "job_state": ["PENDING"], "start_time": None, "flags": None}))
    assert found == (Job(job_id=7, states=frozenset({"PENDING"})),)
    assert unreadable == ()
    assert jobs_of(None) == ((), ())


@pytest.mark.parametrize(
    ("number", "start"),
    [
        ({"set": True, "infinite": False, "number": 5}, 5),
        ({"set": True, "infinite": False, "number": 0}, None),
        ({"set": False, "infinite": False, "number": 5}, None),
        ({"set": False, "infinite": True, "number": 0}, None),
        ({"set": True, "infinite": True, "number": 5}, None),
        ({}, None),
        (5, 5),
        (None, None),
    ],
)
def test_an_unset_time_is_none(number: Any, start: int | None) -> None:
    (job,), _ = jobs_of(raw({"job_id": 7, "job_state": ["PENDING"], "start_time": number}))
    assert job.start == start


@pytest.mark.parametrize(
    ("states", "nodes", "is_it"),
    [
        (["PENDING"], "", "pending"),
        (["PENDING", "REQUEUED"], "", "pending"),
        (["RUNNING"], "a", "allocated"),
        (["RUNNING", "CONFIGURING"], "a", "allocated"),
        (["RUNNING"], "", ""),
        (["RUNNING", "COMPLETING"], "a", ""),
        (["SUSPENDED"], "a", ""),
        (["CANCELLED"], "a", "ended"),
        (["CANCELLED", "COMPLETING"], "a", "ended"),
        (["COMPLETED"], "", "ended"),
        (["FAILED"], "", "ended"),
        (["NODE_FAIL"], "", "ended"),
        (["PREEMPTED"], "", "ended"),
        (["TIMEOUT"], "", "ended"),
        (["DEADLINE"], "", "ended"),
        ([], "", ""),
        (["A_STATE_OF_LATER"], "", ""),
    ],
)
def test_a_job_waits_runs_or_has_ended(states: list[str], nodes: str, is_it: str) -> None:
    (job,), _ = jobs_of(raw({"job_id": 7, "job_state": states, "nodes": nodes}))
    kinds = {"pending": job.pending, "allocated": job.allocated, "ended": job.ended}
    assert [kind for kind, true in kinds.items() if true] == ([is_it] if is_it else [])


def test_an_unreadable_item_has_the_reason() -> None:
    _, (item,) = jobs_of(raw({"job_id": 7, "job_state": 3}))
    assert item == Unreadable(7, "Expected `array`, got `int` - at `$.job_state`")


# ------------------------------------------------------------------ shares


@pytest.mark.parametrize(
    ("bitmap", "cores"),
    [
        ("0x00", ()),
        ("0x03", (0, 1)),
        ("0x1C", (2, 3, 4)),
        ("0xF0F0", (4, 5, 6, 7, 12, 13, 14, 15)),
        ("", ()),
        (None, ()),
    ],
)
def test_cores_are_the_bits_of_a_bitmap(bitmap: str | None, cores: tuple[int, ...]) -> None:
    (share,) = shares_of(raw({"node": "a", "core_bitmap": bitmap}))
    assert share.cores == cores


def test_devices_have_type_and_indices_if_slurm_reports_them() -> None:
    gres = [
        {"name": "gpu", "type": "a100", "count": 3, "index": "0-1,5"},
        {"name": "shard", "type": "", "count": 2, "index": "N/A"},
        {"name": "licence"},
    ]
    (share,) = shares_of(raw({"node": "a", "gres": gres, "mem_alloc": 5}))
    assert share.gres == (Gres("gpu", "a100", 3, (0, 1, 5)), Gres("shard", "", 2, ()), Gres("licence", "", 0, ()))
    assert share.memory_mib == 5


@pytest.mark.parametrize(
    "share",
    [
        {},
        {"node": 7},
        {"node": "a", "core_bitmap": "0xZZ"},
        {"node": "a", "core_bitmap": "0x" + "F" * 100_000},
        {"node": "a", "gres": [{"name": "gpu", "index": "0-99999999"}]},
        {"node": "a", "gres": [{"name": "gpu", "index": "0-"}]},
        b'{"node": "a", "later": ' + b"[" * 100_000,
    ],
)
def test_one_unreadable_share_invalidates_all_shares(share: Any) -> None:
    with pytest.raises(UnreadableError):
        shares_of(raw({"node": "b"}, share))


@pytest.mark.parametrize(
    ("detail", "gres"),
    [
        ("gpu:1(IDX:0)", (Gres("gpu", "", 1, (0,)),)),
        ("gpu:a100:2(IDX:0,3)", (Gres("gpu", "a100", 2, (0, 3)),)),
        ("gpu:a100:1(IDX:0),gpu:h100:2(IDX:4-5)", (Gres("gpu", "a100", 1, (0,)), Gres("gpu", "h100", 2, (4, 5)))),
        ("licence:3", (Gres("licence", "", 3, ()),)),
        ("", ()),
    ],
)
def test_before_v0_0_44_the_job_has_the_devices(detail: str, gres: tuple[Gres, ...]) -> None:
    (good,) = Exchange.of("job_running").answer["jobs"]
    first, second = shares_of_job(raw({**good, "gres_detail": [detail, ""]})[0])
    assert (first.gres, second.gres) == (gres, ())


def test_cores_of_a_second_socket_come_after_those_of_the_first() -> None:
    def socket(index: int, *states: str) -> dict[str, Any]:
        return {"index": index, "cores": [{"index": core, "status": [state]} for core, state in enumerate(states)]}

    sockets = [socket(1, "ALLOCATED", "UNALLOCATED"), socket(0, "UNALLOCATED", "IN_USE")]
    node = {"name": "a", "sockets": sockets, "memory": {"allocated": 7}}
    job = {"job_state": ["RUNNING"], "job_resources": {"nodes": {"allocation": [node]}}}
    (share,) = shares_of_job(raw(job)[0])
    assert (share.node, share.cores, share.memory_mib) == ("a", (1, 2), 7)


@pytest.mark.parametrize(
    "job",
    [
        {"job_state": 7},
        {"job_state": ["RUNNING"], "job_resources": {"nodes": 7}},
        {"job_state": ["RUNNING"], "job_resources": {"nodes": {"allocation": [{}]}}},
        {
            "job_state": ["RUNNING"],
            "job_resources": {"nodes": {"allocation": [{"name": "a"}]}},
            "gres_detail": ["gpu:1(IDX:0-99999999)"],
        },
    ],
)
def test_an_unreadable_share_is_an_error(job: Any) -> None:
    with pytest.raises(UnreadableError):
        shares_of_job(raw(job)[0])
