import json

import pytest

from fluence_plugins.resources.config import (
    attribute_keys,
    env_contract,
    exclusive_names,
    fluxion_resource_names,
    load_resources,
    resource_types,
)
from fluence_plugins.resources.errors import DocumentError, ResourcesError

SAMPLE = """
resources:
  - type: qdevice
    name: rigetti_cepheus
    attributes: aws-east
    with:
      - type: qpu
        with:
          - type: qubit
            count: 80
  - type: fpga
    parent: worker-1
    attributes: {vendor: acme, region: ''}
attributes:
  aws-east:
    region: us-east-1
    connectivity: all-to-all
"""


def one(text):
    (root,) = load_resources(text, "resources.yaml").resources
    return root


def test_a_tree_is_read_with_its_defaults():
    device, fpga = load_resources(SAMPLE, "resources.yaml").resources
    qpu = device.children[0]
    assert (device.type, device.name, device.parent, device.count) == ("qdevice", "rigetti_cepheus", "cluster", 1)
    assert (qpu.type, qpu.name, qpu.count, qpu.children[0].count) == ("qpu", None, 1, 80)
    assert (fpga.parent, fpga.attributes) == ("worker-1", {"vendor": "acme"})


def test_json_and_yaml_say_the_same():
    data = {"resources": [{"type": "qpu", "count": 2, "attributes": {"a": 80, "b": True, "c": "x"}}]}
    yaml_text = "resources:\n- type: qpu\n  count: 2\n  attributes:\n    a: 80\n    b: true\n    c: x\n"
    assert load_resources(json.dumps(data), "f") == load_resources(yaml_text, "f")


def test_attributes_are_inherited_overridden_and_cleared():
    root = one("""
resources:
- type: qdevice
  attributes: {region: us-east-1, vendor: ibm, zone: a}
  with:
  - type: qpu
    attributes: {vendor: rigetti, region: "", zone: null}
    with: [{type: qubit, attributes: {region: back}}]
""")
    qpu = root.children[0]
    assert root.attributes == {"region": "us-east-1", "vendor": "ibm", "zone": "a"}
    assert qpu.attributes == {"vendor": "rigetti"}
    assert qpu.children[0].attributes == {"vendor": "rigetti", "region": "back"}


def test_numbers_and_booleans_are_rendered_as_they_were_written():
    root = one("resources: [{type: q, attributes: {n: 80, price: 1.10, on: true, day: 2026-01-02, no: no}}]")
    assert root.attributes == {"n": "80", "price": "1.10", "on": "true", "day": "2026-01-02", "no": "no"}


def test_classes_are_the_own_type_and_every_descendants():
    device = load_resources(SAMPLE, "f").resources[0]
    assert device.classes() == {"qdevice", "qpu", "qubit"}
    assert device.children[0].children[0].classes() == {"qubit"}


def test_every_type_of_every_depth_is_requestable():
    config = load_resources(SAMPLE, "f")
    assert resource_types(config) == ["fpga", "qdevice", "qpu", "qubit"]
    assert fluxion_resource_names(config)[0] == "fluxion.flux-framework.org/fpga"


def test_the_environment_contract_is_the_backend_and_all_attribute_keys():
    config = load_resources(SAMPLE, "f")
    assert attribute_keys(config) == ["connectivity", "region", "vendor"]
    assert env_contract(config) == {
        "FLUXION_BACKEND": "fluence.flux-framework.org/backend",
        "FLUXION_CONNECTIVITY": "fluence.flux-framework.org/attr-connectivity",
        "FLUXION_REGION": "fluence.flux-framework.org/attr-region",
        "FLUXION_VENDOR": "fluence.flux-framework.org/attr-vendor",
    }


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing yet\n"])
def test_an_empty_file_is_a_cluster_without_virtual_resources(text):
    assert load_resources(text, "f").resources == ()


def test_a_tree_below_a_named_resource_joins_its_tree_and_inherits():
    root = one("""
resources:
- {type: cooler, parent: ibm_fez}
- {type: qdevice, name: ibm_fez, attributes: {vendor: ibm}}
""")
    assert root.name == "ibm_fez"
    assert [child.type for child in root.children] == ["cooler"]
    assert root.children[0].attributes == {"vendor": "ibm"}
    assert root.classes() == {"qdevice", "cooler"}


KEYS = ", ".join(f"k{number}: x" for number in range(256))


def parents(levels):
    """So many resources, each below the next one."""
    lines = [f"- {{type: a, name: n{number}, parent: n{number + 1}}}\n" for number in range(levels)]
    return "resources:\n" + "".join(lines)


ERRORS = [
    ("backends: [{name: x}]", "backends: unknown field; use one of attributes, resources, windows"),
    ("attributes: {a: {k: v}}", "resources: is empty, but the file is not"),
    ("resources: []", "resources: is empty, but the file is not"),
    ("just words", "must be a mapping with a list `resources:`"),
    ("resources: {type: qpu}", "resources: must be a list"),
    ("resources: [qpu]", "resources[0]: must be a mapping"),
    ("resources: [{name: x}]", "resources[0].type: is missing; name the resource's type"),
    ("resources: [{type: a, with: [{type: b}, {count: 2}]}]", "resources[0].with[1].type: is missing"),
    ("resources: [{type: {a: b}}]", "resources[0].type: must be a word"),
    ("resources: [{type: 'a b'}]", "resources[0].type: 'a b' is not valid in fluxion.flux-framework.org/<type>"),
    ("resources: [{type: a, size: 2}]", "resources[0].size: unknown field; use one of attributes, count, name"),
    ("resources: [{type: a, status: off}]", "resources[0].status: 'off' is not a valid status; use up or down"),
    (
        "resources: [{type: a, with: [{type: b, status: [down]}]}]",
        "resources[0].with[0].status: ['down'] is not a valid status",
    ),
    ("resources: [{type: a, count: 0}]", "resources[0].count: '0' is not a valid count"),
    (
        "resources: [{type: a, count: 1000000000}]",
        "resources[0].count: '1000000000' is not a valid count; use a whole number from 1 to 20000",
    ),
    ("resources: [{type: a, count: 1.5}]", "resources[0].count: '1.5' is not a valid count"),
    ("resources: [{type: a, count: [1]}]", "resources[0].count: ['1'] is not a valid count"),
    (
        "resources: [{type: a, sharing: 0}]",
        "resources[0].sharing: '0' is not a valid number of pods; use a whole number from 1",
    ),
    ("resources: [{type: a, sharing: 1001}]", "resources[0].sharing: '1001' is not a valid number of pods"),
    ("resources: [{type: a, sharing: yes}]", "resources[0].sharing: 'yes' is not a valid number of pods"),
    ("resources: [{type: a, sharing: [2]}]", "resources[0].sharing: ['2'] is not a valid number of pods"),
    ("resources: [{type: a, sharing: 1000, with: [{type: b, count: 20}]}]", "resources: have 21001 vertices"),
    ("resources: [{type: a, name: 'x/y'}]", "resources[0].name: 'x/y' is not a valid name"),
    ("resources: [{type: a, attributes: east}]", "resources[0].attributes: refers to 'east'"),
    ("resources: [{type: a, attributes: [east]}]", "resources[0].attributes: must be `key: value` lines"),
    ("resources: [{type: a, attributes: {k: [1]}}]", "resources[0].attributes.k: must be a string, a number"),
    ("resources: [{type: a, attributes: {k: 'x|y'}}]", "resources[0].attributes.k: the value of 'k' contains |"),
    ("resources: [{type: a, attributes: {class: x}}]", "resources[0].attributes.class: 'class' is a property"),
    ("resources: [{type: a}]\nattributes: {s: {k: '(x)'}}", "attributes.s.k: the value of 'k' contains ( )"),
    ("resources: [{type: a}]\nattributes: {s: word}", "attributes.s: must be a mapping"),
    (
        "resources: [{type: a, name: x}, {type: b, name: x}]",
        "resources[1].name: 'x' is already the name of resources[0]",
    ),
    ("resources: [{type: a, name: cluster}]", "resources[0].name: 'cluster' is already the name of the graph's root"),
    (
        "resources: [{type: a, with: [{type: b, parent: c}]}]",
        "resources[0].with[0].parent: applies only to a tree's root",
    ),
    ("resources: [{type: a, name: x, parent: y}, {type: b, name: y, parent: x}]", "resources[0].parent: 'y' is below"),
    (
        "resources: [{type: a, name: x, count: 2}, {type: b, parent: x}]",
        "resources[1].parent: 'x' stands for 2 resources",
    ),
    ("resources: [{type: a, attributes: {a-b: x, a.b: y}}]", "would both become the environment variable FLUXION_A_B"),
    ("resources: [{type: a, count: 1000, with: [{type: b, count: 1000}]}]", "resources: have 1001000 vertices"),
    ("resources: [" + "{type: a}," * 20_001 + "]", "resources: has more than 20000 entries; remove some"),
    (f"resources: [{{type: a, name: {'n' * 254}}}]", "is not a valid name; use at most 253 letters"),
    (f"resources: [{{type: a, attributes: {{{KEYS}, more: x}}}}]", "exceeds the limit of 256 different keys in a file"),
    (
        f"resources: [{{type: a, attributes: s}}]\nattributes: {{s: {{{KEYS}}}, t: {{more: x}}}}",
        "attributes.t: exceeds the limit",
    ),
    (f"resources: [{{type: a, attributes: {{k: {'v' * 32_736}}}}}]", "attributes: take 32769 bytes as annotations"),
    (f"resources: [{{type: a, attributes: {{k: {'é' * 16_368}}}}}]", "attributes: take 32769 bytes as annotations"),
    (
        f"resources: [{{type: a, attributes: s, with: [{{type: b, attributes: {{m: {'v' * 800}}}}}]}}]\n"
        f"attributes: {{s: {{k: {'v' * 32_000}}}}}",
        "resources[0].with[0].attributes: take 32866 bytes as annotations, including inherited ones",
    ),
    (
        f"resources: [{{type: a, count: 600, attributes: {{k: {'v' * 30_000}}}}}]",
        "resources[0].attributes: make the attributes of all vertices exceed 16 MiB",
    ),
    (parents(33), "resources[0].parent: nests more than 32 levels; flatten the tree"),
    (
        "resources: [{type: a, parent: x}, {type: a, name: x, parent: y}, {type: b, name: y, parent: x}]",
        "resources[1].parent: 'y' is below this resource",
    ),
]


@pytest.mark.parametrize(("text", "message"), ERRORS, ids=[message.split(";")[0][:60] for _, message in ERRORS])
def test_a_mistake_is_one_line_with_file_field_and_remedy(text, message):
    with pytest.raises(ResourcesError) as caught:
        load_resources(text, "resources.yaml")
    assert str(caught.value).startswith("resources.yaml: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_just_within_the_limits_is_read():
    assert len(attribute_keys(load_resources(f"resources: [{{type: a, attributes: {{{KEYS}}}}}]", "f"))) == 256
    assert one(f"resources: [{{type: a, attributes: {{k: {'v' * 32_735}}}}}]").attributes["k"] == "v" * 32_735
    assert one(f"resources: [{{type: a, name: {'n' * 253}}}]").name == "n" * 253
    assert len(list(one(parents(32)).walk())) == 32


def test_an_override_counts_once_and_what_is_cleared_not_at_all():
    root = one(f"""
resources:
- type: a
  attributes: {{k: {"v" * 30_000}}}
  with:
  - {{type: b, attributes: {{k: {"w" * 30_000}}}}}
  - {{type: c, attributes: {{k: "", m: {"w" * 30_000}}}}}
""")
    assert [list(child.attributes) for child in root.children] == [["k"], ["m"]]


def test_a_duplicate_key_in_the_file_is_refused():
    with pytest.raises(DocumentError, match=r"resources\.yaml:2: key 'type' appears twice"):
        load_resources("resources:\n- {type: a, type: b}\n", "resources.yaml")


def test_what_is_below_something_down_is_down_whatever_it_says_itself():
    config = load_resources(
        "resources: [{type: a, status: down, with: [{type: b, status: up}]}, "
        "{type: c, with: [{type: d, status: down}]}, "
        "{type: e, parent: x, status: up}, {type: f, name: x, status: down}]",
        "resources.yaml",
    )
    assert {resource.type: resource.down for resource in config.walk()} == {
        "a": True, "b": True, "c": False, "d": True, "e": True, "f": True,
    }  # fmt: skip
    assert resource_types(config) == ["a", "b", "c", "d", "e", "f"]


def test_how_many_share_a_resource_is_one_unless_it_says_so():
    assert one("resources: [{type: a}]").sharing == 1
    shared = one("resources: [{type: a, count: 2, sharing: 3, with: [{type: b}]}]")
    assert (shared.sharing, shared.size()) == (3, 14)


def test_resources_outside_of_nodes_belong_to_one_scheduler():
    text = """
resources:
  - {type: qdevice, name: ibm, with: [{type: qpu}, {type: qpu, name: ibm-qpu}]}
  - {type: licence, count: 5}
  - {type: cable, name: attached, parent: ibm}
  - {type: fpga, name: local, parent: worker-1}
"""
    assert exclusive_names(load_resources(text, "f")) == {"ibm", "ibm-qpu", "licence", "attached"}
