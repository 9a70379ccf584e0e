"""A flavor is in use while a Workload that is not over has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec
import pytest

from fluence_plugins.master_queue.api.flavors_in_use import FlavorsInUse
from session_scheduler.cluster.kube_requests import ApiClient
from session_scheduler.sdk.dynamic_client import Forbidden, KubeApi, NotFound, Unavailable

FINISHED = {"type": "Finished", "status": "True"}


def workload(*podsets: dict[str, str], conditions: list[dict[str, str]] | None = None) -> dict[str, Any]:
    admission = {"clusterQueue": "q", "podSetAssignments": [{"name": "main", "flavors": one} for one in podsets]}
    return {"metadata": {"name": "w"}, "status": {"admission": admission, "conditions": conditions or []}}


class Api:
    """Answers with pages, and keeps what was asked; or raises."""

    def __init__(self, *pages: list[dict[str, Any]] | None) -> None:
        self.pages = list(pages)
        self.asked: list[Mapping[str, str]] = []
        self.error: Exception | None = None

    async def read(self, path: str, query: Mapping[str, str], *, what: str) -> bytes:
        assert path == "apis/kueue.x-k8s.io/v1beta2/workloads"
        self.asked.append(dict(query))
        if self.error is not None:
            raise self.error
        number = int(query.get("continue", "0&").rstrip("&"))
        more = {"continue": f"{number + 1}&"} if number + 1 < len(self.pages) else {}
        return msgspec.json.encode({"metadata": {"resourceVersion": "1", **more}, "items": self.pages[number]})


def in_use(api: Api) -> FlavorsInUse:
    return FlavorsInUse(KubeApi(cast(ApiClient, api)), seconds=60.0)


async def test_flavors_of_every_podset_on_every_page_are_in_use() -> None:
    api = Api([workload({"cpu": "a", "memory": "b"}, {"cpu": "c"})], None, [workload({"cpu": "d"})])
    assert await in_use(api).of(["a", "b", "d", "e"], 0.0) == {"a", "b", "d"}
    assert api.asked == [
        {"limit": "500"},
        {"limit": "500", "continue": "1&"},
        {"limit": "500", "continue": "2&"},
    ]


@pytest.mark.parametrize(
    ("status", "used"),
    [
        ({}, False),
        ({"admission": None}, False),
        (workload({"cpu": "a"})["status"], True),
        (workload({"cpu": "a"}, conditions=[{"type": "Finished", "status": "False"}])["status"], True),
        (workload({"cpu": "a"}, conditions=[{"type": "Admitted", "status": "True"}, FINISHED])["status"], False),
        (workload({})["status"], False),
    ],
)
async def test_a_workload_uses_its_flavors_while_it_is_admitted_and_not_finished(status: Any, used: bool) -> None:
    api = Api([{"metadata": {"name": "w"}, "status": status}, {"metadata": {"name": "new"}}])
    assert await in_use(api).of(["a"], 0.0) == ({"a"} if used else frozenset())


async def test_without_kueue_nothing_is_in_use() -> None:
    api = Api([])
    api.error = NotFound("404")
    assert await in_use(api).of(["a"], 0.0) == frozenset()


async def test_unreadable_workloads_do_not_make_their_flavors_unused() -> None:
    api = Api([workload({"cpu": "a"}), {"status": {"admission": "b"}}])
    with pytest.raises(Unavailable, match=r"/workloads: .*status.admission"):
        await in_use(api).of(["a"], 0.0)


async def test_a_flavor_in_use_is_cached_for_a_while_and_an_unused_one_is_checked_again() -> None:
    api = Api([workload({"cpu": "a", "memory": "b"})])
    found = in_use(api)
    assert await found.of(["a"], 100.0) == {"a"}
    assert await found.of(["b", "a"], 159.0) == {"a", "b"}
    assert len(api.asked) == 1
    api.pages = [[workload({"cpu": "a", "memory": "c"})]]
    assert await found.of(["a", "c"], 159.0) == {"a", "c"}
    assert len(api.asked) == 2
    assert await found.of(["b"], 160.0) == frozenset()
    assert await found.of(["b"], 160.0) == frozenset()
    assert len(api.asked) == 4
    api.pages = [[]]
    assert await found.of(["a"], 219.9) == {"a"}
    assert await found.of(["a"], 220.0) == frozenset()


async def test_a_rejected_request_is_raised_and_does_not_count_as_unused() -> None:
    api = Api([workload({"cpu": "a"})])
    found = in_use(api)
    api.error = Forbidden("403: no")
    with pytest.raises(Forbidden):
        await found.of(["a"], 0.0)
    api.error = None
    assert await found.of(["a"], 1.0) == {"a"}
    api.error = Forbidden("403: no")
    with pytest.raises(Forbidden):
        await found.of(["a"], 61.0)
