import pytest

from fluence_plugins.resources import names
from fluence_plugins.resources.errors import NamingError


@pytest.mark.parametrize(
    ("key", "expected"),
    [("region", "FLUXION_REGION"), ("price/min", "FLUXION_PRICE_MIN"), ("qrmi_type", "FLUXION_QRMI_TYPE"),
     ("a.b-c", "FLUXION_A_B_C"), ("größe", "FLUXION_GR_SSE")],
)  # fmt: skip
def test_an_environment_name_is_upper_case_with_underscores_for_all_else(key, expected):
    assert names.env_name(key) == expected


def test_two_keys_that_share_an_environment_name_are_refused_with_both_names():
    with pytest.raises(NamingError, match=r"'price-min' and 'price\.min' .* FLUXION_PRICE_MIN; rename one"):
        names.env_names(["price.min", "price-min", "region"])


def test_an_attribute_may_not_hide_the_backends_variable():
    with pytest.raises(NamingError, match="'backend' and 'Backend'"):
        names.env_names(["Backend"])


def test_environment_names_come_sorted_by_key():
    assert list(names.env_names(["z", "a"]).items()) == [("a", "FLUXION_A"), ("z", "FLUXION_Z")]


@pytest.mark.parametrize(("key", "value"), [("region", "us-east-1"), ("arn", "a=b=c"), ("tag", "")])
def test_a_property_splits_into_what_it_was_made_of(key, value):
    assert names.split_property(names.property_of(key, value)) == (key, value)


def test_a_prefixed_property_is_read_as_the_plain_one():
    assert names.split_property("fluxion.flux-framework.org/region=us-east-1") == ("region", "us-east-1")


def test_only_prefixed_resource_names_ask_for_a_graph_type():
    assert names.requested_type("fluxion.flux-framework.org/qpu") == "qpu"
    assert names.requested_type("cpu") is None
    assert names.requested_type(names.resource_name("qubit")) == "qubit"


def test_requirements_are_read_from_annotations_with_the_backend_apart():
    annotations = {
        "fluence.flux-framework.org/require-region": "us-east-1",
        "fluence.flux-framework.org/require-backend": "ibm_fez",
        "fluence.flux-framework.org/require-vendor": "",
        "fluence.flux-framework.org/require-": "x",
        "fluence.flux-framework.org/attr-region": "elsewhere",
    }
    assert names.requirements(annotations) == ({"region": "us-east-1"}, "ibm_fez")
    assert names.requirements({}) == ({}, None)


@pytest.mark.parametrize("bad", ["", "a b", "-a", "a/b", "x" * 64])
def test_a_type_that_no_pod_can_request_is_refused(bad):
    with pytest.raises(NamingError, match=r"is not valid in fluxion\.flux-framework\.org/<type>"):
        names.check_type(bad)


@pytest.mark.parametrize("bad", list("!&'\"^`|()"))
def test_a_value_with_a_character_that_properties_may_not_carry_names_the_key(bad):
    with pytest.raises(NamingError, match="value of 'note' contains"):
        names.check_attribute("note", f"a{bad}b")


@pytest.mark.parametrize("bad", ["a\nb", "a\x00", "\ud800"])
def test_a_value_that_cannot_be_printed_is_refused(bad):
    with pytest.raises(NamingError, match="value of 'note' contains a character that is not printable"):
        names.check_attribute("note", bad)


def test_the_graphs_own_property_keys_are_not_attributes():
    for key in ("virtual", "class", "backend"):
        with pytest.raises(NamingError, match=f"'{key}' is a property that the graph uses"):
            names.check_attribute(key, "x")


def test_preferences_are_read_from_annotations_the_backend_among_them():
    annotations = {
        "fluence.flux-framework.org/prefer-region": "us-east-1",
        "fluence.flux-framework.org/prefer-backend": "ibm_fez",
        "fluence.flux-framework.org/prefer-vendor": "",
        "fluence.flux-framework.org/prefer-": "x",
        "fluence.flux-framework.org/require-vendor": "ibm",
    }
    assert names.preferences(annotations) == {"region": "us-east-1", "backend": "ibm_fez"}
    assert names.preferences({}) == {}
