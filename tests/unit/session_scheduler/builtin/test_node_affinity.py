from __future__ import annotations

from typing import Any

import pytest

from session_scheduler.builtin.node_affinity import NodeAffinity
from session_scheduler.config.parsing import validated
from session_scheduler.errors import InputError
from session_scheduler.hookspecs import SKIP, Refusal

PLUGIN = NodeAffinity(None)
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def required(*terms: Any) -> dict[str, Any]:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}


def preferred(*weighted: tuple[int, Any]) -> dict[str, Any]:
    return {"nodeAffinity": {PREFERRED: [{"weight": w, "preference": term} for w, term in weighted]}}


def label(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def name(operator: str, *values: str) -> dict[str, Any]:
    return {"matchFields": [{"key": "metadata.name", "operator": operator, "values": list(values)}]}


@pytest.fixture
def nodes(world: Any) -> Any:
    world.node("a", labels={"disk": "ssd", "gen": "3"})
    world.node("b", labels={"disk": "hdd", "gen": "12"})
    world.node("c", labels={"gen": "new"})
    return world


@pytest.mark.parametrize(
    ("term", "fitting"),
    [
        (label("disk", "In", "ssd", "nvme"), "a"),
        (label("disk", "In", "tape"), ""),
        (label("disk", "NotIn", "ssd"), "bc"),
        (label("disk", "NotIn", "tape"), "abc"),
        (label("disk", "Exists"), "ab"),
        (label("disk", "DoesNotExist"), "c"),
        (label("gen", "Gt", "3"), "b"),
        (label("gen", "Lt", "4"), "a"),
        (label("gen", "Gt", "-1"), ""),
        (label("missing", "Lt", "4"), ""),
        (label("gen", "In", "1", "2", "3", "4", "5", "new"), "ac"),
        (name("In", "b"), "b"),
        (name("NotIn", "b"), "ac"),
        (name("In", "gone"), ""),
        ({**label("disk", "Exists"), **name("NotIn", "a")}, "b"),
        ({}, ""),
        (label("gen", "Gt", "four"), ""),
        (label("gen", "Gt", "1", "2"), ""),
        (label("disk", "In"), ""),
        (label("disk", "Exists", "ssd"), ""),
        (label("disk", "Near", "ssd"), ""),
        (label("disk", "NotIn", "no label value"), ""),
        (label("-bad-", "DoesNotExist"), ""),
        (name("NotIn", "a", "b"), ""),
        (name("Exists"), ""),
    ],
)
def test_a_required_term_selects_nodes_by_labels_and_name(nodes: Any, term: Any, fitting: str) -> None:
    assert nodes.fitting(PLUGIN, nodes.pod(affinity=required(term))) == list(fitting)


@pytest.mark.parametrize(
    ("selector", "fitting"), [({"disk": "ssd"}, "a"), ({"disk": "ssd", "gen": "12"}, ""), ({"disk": "unseen"}, "")]
)
def test_a_node_selector_requires_every_label(nodes: Any, selector: Any, fitting: str) -> None:
    assert nodes.fitting(PLUGIN, nodes.pod(nodeSelector=selector)) == list(fitting)


def test_a_node_must_match_one_of_the_terms_and_the_selector(nodes: Any) -> None:
    affinity = required(label("disk", "In", "hdd"), name("In", "a"))
    assert nodes.fitting(PLUGIN, nodes.pod(affinity=affinity)) == ["a", "b"]
    assert nodes.fitting(PLUGIN, nodes.pod(affinity=affinity, nodeSelector={"gen": "12"})) == ["b"]


def test_pods_without_selector_or_affinity_are_skipped(nodes: Any) -> None:
    assert nodes.prepared(PLUGIN, nodes.pod()) is SKIP
    assert nodes.prepared(PLUGIN, nodes.pod(nodeSelector={}, affinity={"nodeAffinity": {}})) is SKIP


def test_contradictory_terms_reject_the_pod_on_all_nodes(nodes: Any) -> None:
    both = {"matchFields": name("In", "a")["matchFields"] + name("In", "b")["matchFields"]}
    assert nodes.prepared(PLUGIN, nodes.pod(affinity=required(both))) == Refusal("pod affinity terms conflict")


def test_nodes_with_other_names_get_kube_schedulers_other_message(nodes: Any) -> None:
    affinity = required({**name("In", "b"), **label("disk", "In", "ssd")})
    assert nodes.reasons(PLUGIN, nodes.pod(affinity=affinity), "a", "b") == [
        ["node(s) didn't satisfy plugin(s) [NodeAffinity]"],
        ["node(s) didn't match Pod's node affinity/selector"],
    ]


def test_preferred_terms_add_their_weights(nodes: Any) -> None:
    affinity = preferred((5, label("disk", "Exists")), (7, label("gen", "Gt", "4")), (0, name("In", "c")), (9, {}))
    pod = nodes.pod(affinity=affinity)
    assert nodes.scores(PLUGIN, pod) == {"a": 5, "b": 12, "c": 0}
    assert nodes.fitting(PLUGIN, pod) == ["a", "b", "c"]


def test_a_malformed_preference_is_ignored(nodes: Any) -> None:
    pod = nodes.pod(affinity=preferred((5, label("gen", "Gt", "x")), (2, name("In", "a"))))
    assert nodes.scores(PLUGIN, pod) == {"a": 2, "b": 0, "c": 0}


def test_added_affinity_applies_to_every_pod(nodes: Any) -> None:
    added = {
        REQUIRED: {"nodeSelectorTerms": [label("disk", "Exists")]},
        PREFERRED: [{"weight": 3, "preference": name("In", "b")}],
    }
    plugin = NodeAffinity(validated(NodeAffinity.Arguments, {"addedAffinity": added}, "f"))
    assert nodes.fitting(plugin, nodes.pod()) == ["a", "b"]
    assert nodes.scores(plugin, nodes.pod(affinity=preferred((1, name("NotIn", "a"))))) == {"a": 0, "b": 4, "c": 1}
    pod = nodes.pod(nodeSelector={"disk": "hdd"})
    assert nodes.reasons(plugin, pod, "a", "c") == [
        ["node(s) didn't match Pod's node affinity/selector"],
        ["node(s) didn't match scheduler-enforced node affinity"],
    ]


@pytest.mark.parametrize(
    ("added", "words"),
    [
        (
            {REQUIRED: {"nodeSelectorTerms": [label("gen", "Gt", "x")]}},
            "nodeSelectorTerms[0].matchExpressions[0].values[0]",
        ),
        ({PREFERRED: [{"weight": 1, "preference": name("In", "a", "b")}]}, "[0].preference.matchFields[0].values"),
        ({PREFERRED: [{"preference": {}}]}, "weight"),
        ({"requiredDuringScheduling": {}}, "unknown field 'requiredDuringScheduling'"),
        ({REQUIRED: 3}, REQUIRED),
    ],
)
def test_a_malformed_added_affinity_is_rejected_with_its_path(added: Any, words: str) -> None:
    with pytest.raises(InputError) as caught:
        validated(NodeAffinity.Arguments, {"addedAffinity": added}, "conf.yaml", "profiles[0].plugins[0].args")
    assert "conf.yaml: profiles[0].plugins[0].args.addedAffinity" in str(caught.value)
    assert words in str(caught.value)
