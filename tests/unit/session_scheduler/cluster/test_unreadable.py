"""Invalid objects from an API server: ignored or partly decoded, without effect on other objects."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from session_scheduler.cluster.errors import Unavailable
from session_scheduler.cluster.kube_kinds import resource_of
from session_scheduler.cluster.unreadable import outline
from session_scheduler.model.devices import ResourceClaim
from session_scheduler.model.objects import Node, Pod, PriorityClass

CLAIMS, PODS, NODES = resource_of(ResourceClaim), resource_of(Pod), resource_of(Node)
DEEP = 4000
"""An API server accepts parameters of up to 10 KiB with any nesting; decoders go some hundred levels deep."""


def claim(name: str, depth: int) -> str:
    config = f'[{{"opaque":{{"driver":"d","parameters":{{"a":{"[" * depth}"]}}"{"]" * depth}}}}}}}]'
    return (f'{{"kind":"ResourceClaim","metadata":{{"name":"{name}","namespace":"d","resourceVersion":"7"}},'
            f'"spec":{{"devices":{{"config":{config}}}}}}}')  # fmt: skip


def test_a_claim_that_nests_too_deep_is_ignored_in_a_list() -> None:
    items = ",".join(claim(name, depth) for name, depth in (("a", 1), ("deep", DEEP), ("b", 300)))
    page = CLAIMS.page(f'{{"metadata":{{"resourceVersion":"9","continue":"on"}},"items":[{items}]}}'.encode())
    assert [item.metadata.name for item in page.items or ()] == ["a", "b"]
    assert (page.metadata.resource_version, page.metadata.continue_token) == ("9", "on")


def test_a_change_of_a_claim_that_nests_too_deep_only_updates_the_version_of_the_watch() -> None:
    text = f'{{"type":"ADDED","object":{claim("deep", DEEP)}}}'.encode()
    assert CLAIMS.line(text) is None
    assert CLAIMS.version_of_line(text) == "7"


def test_a_response_that_nests_too_deep_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="cannot decode the API server's response"):
        CLAIMS.object(claim("deep", DEEP).encode())


def test_an_outline_has_nulls_for_removed_parts_and_ignores_brackets_in_texts() -> None:
    text = b'{"a":"[\\"{","b":[{"c":"]"},[1]],"d":{}}'
    rest, taken = outline(text, 1)
    assert json.loads(rest) == {"a": '["{', "b": None, "d": None}
    assert taken == [b'[{"c":"]"},[1]]', b"{}"]


# ---------------------------------------------------------------------- pods and nodes

META = {"name": "x", "namespace": "d", "uid": "u", "resourceVersion": "5"}


def changed(obj: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"type": "MODIFIED", "object": obj})


def pod(**fields: Any) -> dict[str, Any]:
    return {"kind": "Pod", "metadata": META, **fields}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"spec": {"nodeName": "n", "containers": [{"ports": [{"containerPort": "80"}]}]}},
         "spec.containers[0].ports[0].containerPort: '80' is a string"),
        ({"spec": {"nodeName": "n", "nodeSelector": {"disk": 1}}},
         "spec.nodeSelector.disk: 1 is not a string; quote it"),
        ({"spec": {"nodeName": "n", "tolerations": 7, "priority": "high"}}, "spec.tolerations: must be a list, not 7"),
        ({"spec": {"nodeName": "n"}, "status": {"conditions": [{}]}}, "status.conditions[0].type: is missing"),
    ],
)  # fmt: skip
def test_the_valid_parts_of_an_invalid_pod_are_decoded(fields: dict[str, Any], problem: str) -> None:
    line = PODS.line(changed(pod(**fields)))
    assert line is not None
    assert isinstance(line.object, Pod)
    assert (line.type, line.object.key, line.object.spec.node_name) == ("MODIFIED", "d/x", "n")
    assert problem in line.object.unreadable


def test_a_list_has_the_valid_and_the_invalid_pods() -> None:
    items = [pod(), pod(spec={"containers": "none"}), pod()]
    page = PODS.page(msgspec.json.encode({"metadata": {"resourceVersion": "9"}, "items": items}))
    assert [bool(item.unreadable) for item in page.items or ()] == [False, True, False]


def test_an_invalid_node_is_marked_as_unreadable() -> None:
    node = {"kind": "Node", "metadata": META, "spec": {"taints": [{"key": "a"}, {"key": None}]}}
    line = NODES.line(changed(node))
    assert line is not None
    assert isinstance(line.object, Node)
    assert line.object.unreadable == "spec.taints[1].key: must be a string, not null"


def test_a_pod_without_a_readable_name_makes_the_watch_unavailable() -> None:
    with pytest.raises(Unavailable, match=r"metadata\.name"):
        PODS.line(changed({"kind": "Pod", "metadata": {"name": 7, "uid": "u"}}))


def test_an_invalid_priority_class_is_ignored() -> None:
    wrong = {"kind": "PriorityClass", "metadata": META, "value": "high"}
    assert resource_of(PriorityClass).line(changed(wrong)) is None
