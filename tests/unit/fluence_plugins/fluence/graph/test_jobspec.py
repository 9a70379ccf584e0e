import json

import pytest

from fluence_plugins.fluence.errors import JobspecError
from fluence_plugins.fluence.graph.jobspec import Count, Jobspec, Resource, Task, slot
from fluence_plugins.resources.errors import DocumentError


def jobspec():
    return Jobspec.of(
        Resource("node", 2, (slot(1, Resource("core", 4), Resource("memory", Count(1, 8, "*", 2), unit="MiB")),)),
        constraints={"and": [{"properties": ["virtual=true", "no"]}, {"ranks": ["0-3"]}]},
        tasks=[Task.per_slot("app")],
    )


def test_a_jobspec_survives_yaml_and_json():
    assert Jobspec.from_yaml(jobspec().to_yaml()) == jobspec()
    assert Jobspec.from_json(jobspec().to_json()) == jobspec()


def test_duration_is_zero_unless_given_and_constraints_are_kept():
    assert jobspec().duration == 0
    assert jobspec().attributes["system"]["duration"] == 0
    assert jobspec().constraints == {"and": [{"properties": ["virtual=true", "no"]}, {"ranks": ["0-3"]}]}
    assert Jobspec.of(Resource("node", 1), duration=1.5).duration == 1.5
    assert Jobspec.of(Resource("node", 1)).constraints is None


def test_the_text_has_what_the_matcher_demands_and_no_more():
    data = json.loads(jobspec().to_json())
    assert sorted(data) == ["attributes", "resources", "tasks", "version"]
    node = data["resources"][0]
    assert sorted(node) == ["count", "type", "with"]
    assert node["with"][0]["label"] == "default"
    assert node["with"][0]["with"][1]["count"] == {"min": 1, "max": 8, "operator": "*", "operand": 2}
    assert data["tasks"] == [{"command": ["app"], "slot": "default", "count": {"per_slot": 1}}]


def test_property_strings_stay_quoted_in_json():
    assert '"virtual=true","no"' in jobspec().to_json()


BASE = {"version": 1, "resources": [{"type": "node", "count": 1}], "tasks": [], "attributes": {}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 0}, "expected version 1 to 9999, got 0"),
        ({"resources": []}, "resources is empty"),
        ({"resources": [{"type": "node"}]}, r"missing required field `count` - at `\$\.resources\[0\]`"),
        (
            {"resources": [{"type": "node", "count": -1}]},
            r"node: expected a count of 0 to 4294967295, got -1.*resources\[0\]",
        ),
        ({"resources": [{"type": "slot", "count": 1}]}, r"a slot has no label.*resources\[0\]"),
        ({"resources": [{"type": "", "count": 1}]}, "a resource has an empty type"),
        ({"resources": [{"type": "node", "count": 1, "requires": "x"}]}, "unknown field `requires`"),
        ({"resources": [{"type": "node", "count": {"min": 1, "max": 2}}]}, "all of max, operator and operand"),
        ({"resources": [{"type": "n", "count": {"min": 1, "max": 2, "operator": "-", "operand": 1}}]}, "operator '-'"),
        ({"more": 1}, "unknown field `more`"),
    ],
)
def test_a_malformed_jobspec_is_refused_with_the_field(change, message):
    with pytest.raises(JobspecError, match=message) as caught:
        Jobspec.from_json(json.dumps(BASE | change), "job.yaml")
    assert str(caught.value).startswith("job.yaml: ")


def test_a_text_that_is_no_document_is_refused():
    with pytest.raises(DocumentError, match=r"job\.yaml"):
        Jobspec.from_yaml("a: [", "job.yaml")
