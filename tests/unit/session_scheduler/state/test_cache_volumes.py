"""Volumes in the cache: objects by kind, and the usage of volumes by node."""

from __future__ import annotations

from typing import Any

import msgspec

from session_scheduler.model.class_table import ClassTable
from session_scheduler.model.columns import NodeTable
from session_scheduler.model.objects import KubeObject, Node, ObjectMeta, Pod, PodSpec
from session_scheduler.model.storage import (
    PersistentVolume,
    PersistentVolumeClaim,
)
from session_scheduler.state.cache import Cache


def a_cache(*objects: KubeObject) -> Cache:
    table = NodeTable()
    cache = Cache(table, ClassTable(table), {"default-scheduler"}.__contains__)
    for obj in objects:
        cache.put(obj)
    return cache


def a_pod(name: str, *volumes: dict[str, Any], node: str = "") -> Pod:
    return Pod(metadata=ObjectMeta(name=name, namespace="ns", uid=name), spec=PodSpec(volumes=volumes, node_name=node))


def named(claim: str) -> dict[str, Any]:
    return {"name": "v", "persistentVolumeClaim": {"claimName": claim}}


def a_claim(name: str, **spec: Any) -> PersistentVolumeClaim:
    metadata = {"name": name, "namespace": "ns", "uid": name}
    return msgspec.convert({"kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}, PersistentVolumeClaim)


EPHEMERAL = {"name": "v", "ephemeral": {"volumeClaimTemplate": {}}}


def test_objects_are_found_by_kind_and_key_until_they_are_gone() -> None:
    cache = a_cache(a_claim("c"), PersistentVolume(metadata=ObjectMeta(name="c")))
    assert list(cache.objects.of(PersistentVolumeClaim)) == ["ns/c"]
    assert list(cache.objects.of(PersistentVolume)) == ["c"]
    before = cache.objects.version(PersistentVolume)
    cache.remove(PersistentVolume(metadata=ObjectMeta(name="c")))
    assert not cache.objects.of(PersistentVolume)
    assert cache.objects.version(PersistentVolume) != before
    assert list(cache.objects.of(PersistentVolumeClaim)) == ["ns/c"]


def test_volumes_are_used_on_the_nodes_of_their_pods() -> None:
    disk = {"name": "d", "awsElasticBlockStore": {"volumeID": "vol-1"}}
    cache = a_cache(Node(metadata=ObjectMeta(name="n")), a_pod("a", named("c"), disk, node="n"))
    cache.put(a_pod("b", named("c"), node="n"))
    claim, block = ("claim", "ns", "c"), ("awsElasticBlockStore", "vol-1")
    assert dict(cache.volume_use.on_node("n")) == {claim: 2, block: 1}
    assert dict(cache.volume_use.nodes_of(claim)) == {"n": 2}
    before = cache.volume_use.version("n")
    cache.remove(a_pod("a", named("c"), disk, node="n"))
    assert dict(cache.volume_use.on_node("n")) == {claim: 1}
    assert cache.volume_use.version("n") != before
    cache.remove(a_pod("b", named("c"), node="n"))
    assert not cache.volume_use.on_node("n")
    assert not cache.volume_use.nodes_of(claim)


def test_volumes_on_an_unknown_node_count_too() -> None:
    cache = a_cache(a_pod("a", named("c"), node="unknown"))
    assert dict(cache.volume_use.nodes_of(("claim", "ns", "c"))) == {"unknown": 1}


def test_pods_with_ephemeral_volumes_have_their_own_class() -> None:
    cache = a_cache(a_pod("a", EPHEMERAL), a_pod("b", EPHEMERAL), a_pod("c", named("x")), a_pod("d", named("x")))
    classes = {task.name: task.cls for task in cache.tasks.values()}
    assert classes["a"] is not classes["b"]
    assert classes["a"].volumes == (("ephemeral", "ns", "a-v"),)
    assert classes["c"] is classes["d"]


def test_malformed_volumes_do_not_count() -> None:
    cache = a_cache(a_pod("a", {"name": 1, "persistentVolumeClaim": "c"}, {"rbd": {"monitors": None}}, node="n"))
    assert not cache.volume_use.on_node("n")
