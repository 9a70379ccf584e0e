"""What `fluence pool list` makes of MasterQueues and ClusterQueues."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, cast

import msgspec
import pytest

from fluence_plugins.master_queue.pool import report as pool_report
from fluence_plugins.master_queue.pool.tables import parts
from session_scheduler.cluster.kube_requests import ApiClient
from session_scheduler.errors import InputError
from session_scheduler.sdk.commands import TableRows
from session_scheduler.sdk.dynamic_client import ClusterError, Forbidden, KubeApi, NotFound

Manifest = dict[str, Any]
NOW = 1767323045.0
"""2026-01-02T03:04:05Z"""


def master(**status: Any) -> Manifest:
    conditions = [{"type": "Ready", "status": "True"}, {"type": "NatsConnected", "status": "True"}]
    return {
        "metadata": {"name": "main", "uid": "u1"},
        "spec": {
            "template": {"cohort": "c"},
            "flavors": [
                {"name": "remote", "natsFlavor": {"natsConnector": "nats://u:secret@n", "poolRegExp": ".*"}},
                {"name": "local-cpu", "localFlavor": {}},
            ],
        },
        "status": {
            "conditions": conditions,
            "pools": [
                {"name": "far", "flavor": "remote", "state": "Active", "lastMessage": "2026-01-02T03:03:53Z",
                 "quota": {"cpu": "8", "pods": "10"}},
                {"name": "gone", "flavor": "remote", "state": "Waiting"},
            ],
        } | status,
    }  # fmt: skip


def queue(name: str, quotas: Manifest, used: Manifest, owner: str = "u1", **status: int) -> Manifest:
    flavors = [{"name": flavor, "resources": [{"name": one, "nominalQuota": quota} for one, quota in each.items()]}
               for flavor, each in quotas.items()]  # fmt: skip
    usage = [{"name": flavor, "resources": [{"name": one, "total": total} for one, total in each.items()]}
             for flavor, each in used.items()]  # fmt: skip
    owners = [{"apiVersion": "vk.io/v1", "kind": "MasterQueue", "name": "main", "uid": owner}]
    return {
        "metadata": {"name": name, "ownerReferences": owners},
        "spec": {"cohortName": "c", "stopPolicy": "None", "resourceGroups": [{"flavors": flavors}]},
        "status": {"flavorsUsage": usage, **status},
    }


FAR = "main-remote-far"
NOMINAL = {FAR: {"cpu": "500m", "pods": "10"}, "local-cpu": {"pods": 100}}
QUEUES = [
    queue("branch", {FAR: {"pods": "0"}}, {FAR: {"pods": "3"}}, pendingWorkloads=2, admittedWorkloads=1),
    queue("main", NOMINAL, {FAR: {"cpu": "250m", "pods": "1"}}),
    queue("stranger", {FAR: {"pods": "5"}}, {FAR: {"pods": "5"}}, owner="u2"),
]


class Api:
    def __init__(self, **answers: Manifest | Exception) -> None:
        self._answers = answers

    async def read(self, path: str, query: Mapping[str, str], *, what: str) -> bytes:
        found = self._answers[path.rpartition("/")[2]]
        if isinstance(found, Exception):
            raise found
        return msgspec.json.encode({"metadata": {}, **found})


def read(masters: Manifest | Exception, queues: Manifest | Exception) -> Manifest:
    api = KubeApi(cast(ApiClient, Api(masterqueues=masters, clusterqueues=queues)))
    return asyncio.run(pool_report.read(api, NOW))


def report(*masters: Manifest) -> Manifest:
    return read({"items": list(masters)}, {"items": QUEUES})


def test_each_pool_has_its_quota_usage_and_lent_amounts() -> None:
    (found,) = report(master())["masterQueues"]
    far, gone, local = found["pools"]
    assert far["resources"] == {
        "cpu": {"quota": "500m", "used": "250m", "lent": "0"},
        "pods": {"quota": "10", "used": "4", "lent": "3"},
    }
    assert (far["resourceFlavor"], far["published"]) == ("main-remote-far", {"cpu": "8", "pods": "10"})
    assert (far["lastMessage"], far["ageSeconds"]) == ("2026-01-02T03:03:53Z", 12)
    assert (gone["state"], gone["lastMessage"], gone["ageSeconds"], gone["resources"]) == ("Waiting", None, None, {})
    assert (local["pool"], local["state"], local["resourceFlavor"]) == (None, "Local", "local-cpu")
    assert local["resources"] == {"pods": {"quota": "100", "used": "0", "lent": "0"}}


def test_the_queues_are_those_of_the_master_queue_with_its_own_first() -> None:
    (found,) = report(master())["masterQueues"]
    assert [one["name"] for one in found["queues"]] == ["main", "branch"]
    assert found["queues"][1] == {
        "name": "branch", "cohort": "c", "stopPolicy": "None", "pendingWorkloads": 2, "reservingWorkloads": 0,
        "admittedWorkloads": 1,
    }  # fmt: skip


def test_the_report_is_plain_json_without_addresses() -> None:
    assert "secret" not in json.dumps(report(master()))


def rows(found: Manifest) -> list[list[tuple[Any, ...]]]:
    return [[tuple(row) for row in part.rows] for part in parts(found) if isinstance(part, TableRows)]


def test_the_table_has_a_row_for_each_resource_and_the_queues_below() -> None:
    pools, queues = rows(report(master()))
    assert pools == [
        ("main", "remote", "far", "Active", "12s", "cpu", "500m", "250m", "0"),
        ("main", "remote", "far", "Active", "12s", "pods", "10", "4", "3"),
        ("main", "remote", "gone", "Waiting", None, None, None, None, None),
        ("main", "local-cpu", None, "Local", None, "pods", "100", "0", "0"),
    ]
    assert queues == [("main", "main", "c", "None", 0, 0), ("main", "branch", "c", "None", 2, 1)]


def test_each_problem_is_listed_once_below_the_tables() -> None:
    away = [{"type": "Ready", "status": "False"}, {"type": "NatsConnected", "status": "False"}]
    pools = [{"name": "far", "flavor": "remote", "problems": ["rename it", "labels[0]: has no ="]}]
    shown = parts(report(master(conditions=away, problems=["pool far: rename it"], pools=pools)))
    assert [part for part in shown if isinstance(part, str) and part] == [
        "main: not connected to NATS; pools keep their state",
        "main: pool far: rename it",
        "main: pool far: labels[0]: has no =",
    ]
    assert parts(report(master(conditions=[])))[-1] == "main: no controller reconciles it; start `fluence master-queue`"
    assert parts(report()) == ["no MasterQueues"]


@pytest.mark.parametrize(("masters", "queues", "why"), [
    (NotFound("404"), {"items": []},
     "the API server does not serve MasterQueues; apply deploy/options/master-queue.yaml"),
    ({"items": []}, NotFound("404"), "the API server does not serve ClusterQueues of Kueue v1beta2; install Kueue"),
    (Forbidden("masterqueues is forbidden"), {"items": []},
     "not allowed to list MasterQueues; request this permission"),
    ({"items": []}, Forbidden("forbidden"), "not allowed to list ClusterQueues"),
    ({"items": []}, {"items": [{"spec": {"cohortName": 1}}]}, "is Kueue newer than this version of Fluence supports?"),
])  # fmt: skip
def test_a_missing_object_or_right_is_reported_in_one_line(
    masters: Manifest | Exception, queues: Manifest | Exception, why: str
) -> None:
    with pytest.raises(InputError) as refused:
        read(masters, queues)
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_cluster_that_does_not_answer_is_a_separate_error() -> None:
    with pytest.raises(ClusterError, match="no answer"):
        read(ClusterError("no answer"), {"items": []})
