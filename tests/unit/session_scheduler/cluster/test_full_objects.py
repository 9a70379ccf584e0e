"""Complete nodes for extenders: read once for each version, few of them one by one."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from session_scheduler.cluster.errors import NotFound
from session_scheduler.cluster.full_objects import ApiObjects
from session_scheduler.model.objects import Node, ObjectMeta, Pod


class Api:
    """An API server with nodes; records requests."""

    def __init__(self, *names: str) -> None:
        self.versions = dict.fromkeys(names, "1")
        self.asked: list[str] = []
        self.client = self
        self.reading = self.most = 0
        self.slow = ""
        """The node whose list takes longest."""

    async def list(self, path: str, kind: Any, *, fields: str = "") -> tuple[msgspec.Raw, ...]:
        self.asked.append(fields)
        for _ in range(20 if fields == f"metadata.name={self.slow}" else 1):
            await asyncio.sleep(0)
        chosen = [name for name in self.versions if not fields or fields == f"metadata.name={name}"]
        return tuple(msgspec.Raw(self._text(name)) for name in chosen)

    async def read(self, path: str, *, what: str) -> bytes:
        self.reading += 1
        self.most = max(self.most, self.reading)
        await asyncio.sleep(0)
        self.reading -= 1
        return self._text(path.rpartition("/")[2])

    def _text(self, name: str) -> bytes:
        metadata = {"name": name, "uid": name, "resourceVersion": self.versions.get(name, "1")}
        return msgspec.json.encode({"metadata": metadata, "status": {"nodeInfo": {}}})


def nodes(*names: str, version: str = "1") -> dict[str, Node]:
    return {name: Node(metadata=ObjectMeta(name=name, resource_version=version)) for name in names}


async def test_a_few_nodes_are_read_one_by_one_and_kept_until_they_change() -> None:
    api = Api("a", "b")
    objects = ApiObjects(api)  # type: ignore[arg-type]
    for _ in range(2):
        found = await objects.nodes(nodes("a", "b", "gone"))
        assert sorted(found) == ["a", "b"]
        assert b"nodeInfo" in bytes(found["a"])
    assert api.asked == ["metadata.name=a", "metadata.name=b", "metadata.name=gone", "metadata.name=gone"]
    api.asked.clear()
    api.versions["a"] = "2"
    await objects.nodes(nodes("a", version="2"))
    assert api.asked == ["metadata.name=a"]


async def test_many_nodes_are_listed_once_for_all_who_wait() -> None:
    names = [f"n{number}" for number in range(20)]
    api = Api(*names)
    objects = ApiObjects(api)  # type: ignore[arg-type]
    found = await asyncio.gather(*(objects.nodes(nodes(*names)) for _ in range(3)))
    assert [len(one) for one in found] == [20, 20, 20]
    assert api.asked == [""]
    await objects.close()


async def test_a_node_that_several_callers_need_is_read_once_and_missing_in_no_answer() -> None:
    api = Api("a", "b", "c")
    objects = ApiObjects(api)  # type: ignore[arg-type]
    await objects.nodes(nodes("a"))
    api.asked.clear()
    api.versions["a"] = "2"
    wanted = nodes("a", version="2")
    found = await asyncio.gather(objects.nodes(wanted | nodes("b")), objects.nodes(wanted | nodes("c")))
    assert [sorted(one) for one in found] == [["a", "b"], ["a", "c"]]
    assert sorted(api.asked) == ["metadata.name=a", "metadata.name=b", "metadata.name=c"]
    del api.versions["a"]
    assert await objects.nodes(nodes("a", version="3")) == {}
    await objects.close()


async def test_a_node_that_another_caller_reads_again_stays_known() -> None:
    api = Api("a", "b")
    objects = ApiObjects(api)  # type: ignore[arg-type]
    await objects.nodes(nodes("a"))
    api.slow = "a"
    both, again = objects.nodes(nodes("a", "b")), objects.nodes(nodes("a", version="2"))
    assert [sorted(one) for one in await asyncio.gather(both, again)] == [["a", "b"], ["a"]]


async def test_few_pods_are_read_at_the_same_time() -> None:
    api = Api()
    objects = ApiObjects(api)  # type: ignore[arg-type]
    metas = [ObjectMeta(name=f"p{number}", namespace="d", uid=f"p{number}") for number in range(100)]
    await asyncio.gather(*(objects.pod(Pod(metadata=meta)) for meta in metas))
    assert api.most == 32


async def test_a_recreated_pod_is_not_sent() -> None:
    objects = ApiObjects(Api())  # type: ignore[arg-type]
    with pytest.raises(NotFound, match="recreated"):
        await objects.pod(Pod(metadata=ObjectMeta(name="p", namespace="d", uid="another")))
