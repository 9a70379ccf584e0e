import json

import pytest

from fluence_plugins.fluence.errors import JobspecError
from fluence_plugins.fluence.graph.jobspec import Jobspec, Resource, Task, slot


def jobspec():
    return Jobspec.of(
        Resource("node", 2, (slot(1, Resource("core", 4), Resource("memory", 8)),)),
        constraints={"and": [{"properties": ["virtual=true", "no"]}, {"ranks": ["0-3"]}]},
        tasks=[Task.per_slot("app")],
    )


def test_an_allocation_is_held_until_it_is_cancelled_and_constraints_are_kept():
    assert jobspec().attributes["system"]["duration"] == 0
    assert jobspec().constraints == {"and": [{"properties": ["virtual=true", "no"]}, {"ranks": ["0-3"]}]}
    assert Jobspec.of(Resource("node", 1)).constraints is None


def test_the_text_has_what_the_matcher_demands_and_no_more():
    data = json.loads(jobspec().to_json())
    assert sorted(data) == ["attributes", "resources", "tasks", "version"]
    node = data["resources"][0]
    assert sorted(node) == ["count", "type", "with"]
    assert node["with"][0]["label"] == "default"
    assert node["with"][0]["with"][1] == {"type": "memory", "count": 8}
    assert data["tasks"] == [{"command": ["app"], "slot": "default", "count": {"per_slot": 1}}]


def test_property_strings_stay_quoted_in_json():
    assert '"virtual=true","no"' in jobspec().to_json()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Jobspec.of(), "resources is empty"),
        (lambda: Resource("node", -1), "node: count -1 "),
        (lambda: Resource("slot", 1), "a slot has no label"),
        (lambda: Resource("", 1), "type is empty"),
    ],
)
def test_a_malformed_jobspec_is_refused_with_the_field(make, message):
    with pytest.raises(JobspecError, match=message):
        make()
