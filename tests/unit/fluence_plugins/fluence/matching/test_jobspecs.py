import pytest

from fluence_plugins.fluence.errors import JobspecError, NoMatchingDeviceError, UnknownDeviceTypeError
from fluence_plugins.fluence.graph.accounting import PodShape
from fluence_plugins.fluence.graph.cluster_graph import ClusterGraph, HostResources, build_graph
from fluence_plugins.fluence.matching.jobspecs import compute_jobspec, device_jobspecs
from fluence_plugins.resources.config import load_resources

QUANTUM = """
resources:
- type: qdevice
  name: rigetti
  attributes: {region: east}
  with: [{type: qpu, count: 2, with: [{type: qubit, count: 80}]}]
- type: qdevice
  name: ibm
  attributes: {region: west}
  with: [{type: qpu, with: [{type: qubit, count: 4}]}]
"""
HOSTS = [HostResources("n1", 2, 1024)]


def graph_of(text, hosts=HOSTS):
    return build_graph(hosts, load_resources(text, "resources.yaml"))


@pytest.fixture(scope="module")
def quantum():
    return graph_of(QUANTUM)


def shape(jobspec):
    """The nesting as text, such as node1(slot1(node3))."""

    def text(resource):
        inner = ",".join(text(child) for child in resource.with_)
        return f"{resource.type}{resource.count}" + (f"({inner})" if inner else "")

    return ",".join(text(resource) for resource in jobspec.resources)


def test_a_compute_jobspec_has_a_slot_for_each_pod_on_hosts_only():
    jobspec = compute_jobspec(PodShape(cores=2, memory_mib=512, gpus=1), 3)
    assert shape(jobspec) == "slot3(core2,gpu1,memory512)"
    assert jobspec.constraints == {"properties": ["virtual=false"]}
    assert jobspec.duration == 0


def test_what_a_pod_does_not_ask_for_is_left_out():
    assert shape(compute_jobspec(PodShape(), 1)) == "slot1(core1)"


@pytest.mark.parametrize("bad", [{"cores": 0}, {"memory_mib": -1}, {"gpus": -1}])
def test_a_pod_takes_at_least_one_core_and_nothing_negative(bad):
    with pytest.raises(JobspecError, match="at least one core"):
        PodShape(**bad)


@pytest.mark.parametrize(
    ("device_type", "count", "expected"),
    [
        ("qdevice", 1, ["slot1(node1)"]),
        ("qpu", 1, ["node1(slot1(node1))"]),
        ("qpu", 2, ["node1(slot1(node2))"]),
        ("qubit", 3, ["node1(node1(slot1(node3)))"]),
        ("qubit", 80, ["node1(node1(slot1(node80)))", "node1(node2(slot1(node40)))"]),
        ("qubit", 160, ["node1(node2(slot1(node80)))"]),
    ],
)
def test_each_level_above_a_device_is_spelled_out(quantum: ClusterGraph, device_type, count, expected):
    jobspecs = device_jobspecs(quantum, device_type, count)
    assert [shape(jobspec) for jobspec in jobspecs] == expected
    assert {jobspec.duration for jobspec in jobspecs} == {0.0}


def test_a_device_is_selected_by_properties_alone_where_they_suffice(quantum: ClusterGraph):
    (jobspec,) = device_jobspecs(quantum, "qubit", 3, {"region": "west"})
    assert jobspec.constraints == {"properties": ["virtual=true", "class=qubit", "region=west"]}


def test_a_required_backend_is_one_more_property(quantum: ClusterGraph):
    (jobspec,) = device_jobspecs(quantum, "qpu", 1, backend="ibm")
    assert jobspec.constraints == {"properties": ["virtual=true", "class=qpu", "backend=ibm"]}


def test_several_roots_come_from_one_tree_by_rank_and_one_root_from_any():
    graph = graph_of("resources: [{type: fpga, name: a, count: 3}, {type: fpga, name: b, count: 2}]")
    first, second = (jobspec.constraints for jobspec in device_jobspecs(graph, "fpga", 2))
    assert first == {"and": [{"properties": ["virtual=true", "class=fpga"]}, {"ranks": ["1-3"]}]}
    assert second
    assert second["and"][1] == {"ranks": ["4-5"]}
    (third,) = device_jobspecs(graph, "fpga", 3)
    assert third.constraints == first
    (alone,) = device_jobspecs(graph, "fpga", 1, slots=5)
    assert alone.constraints == {"properties": ["virtual=true", "class=fpga"]}


def test_several_pods_can_share_one_match_with_a_slot_each(quantum: ClusterGraph):
    (jobspec,) = device_jobspecs(quantum, "qubit", 40, slots=2, backend="rigetti")[:1]
    assert shape(jobspec) == "node1(node1(slot2(node40)))"


def test_more_devices_than_one_tree_has_are_never_asked_for(quantum: ClusterGraph):
    for device_type, count in [("qdevice", 2), ("qpu", 3), ("qubit", 161), ("qubit", 10**12)]:
        with pytest.raises(NoMatchingDeviceError, match=f"{device_type}, and the pod requests {count}; request fewer"):
            device_jobspecs(quantum, device_type, count)


def test_an_unmodelled_type_is_refused_with_the_modelled_ones(quantum: ClusterGraph):
    with pytest.raises(
        UnknownDeviceTypeError, match="no resource tree has type 'laser'; known types: qdevice, qpu, qubit"
    ):
        device_jobspecs(quantum, "laser", 1)
    with pytest.raises(UnknownDeviceTypeError, match="no resource tree has type 'qpu'; known types: none"):
        device_jobspecs(graph_of(""), "qpu", 1)


def test_a_requirement_that_nothing_meets_is_refused_with_what_there_is(quantum: ClusterGraph):
    with pytest.raises(NoMatchingDeviceError, match=r"no qpu with region=mars exists; the graph has ibm \(region="):
        device_jobspecs(quantum, "qpu", 1, {"region": "mars"})
    with pytest.raises(NoMatchingDeviceError, match="no qpu with region=west of backend rigetti"):
        device_jobspecs(quantum, "qpu", 1, {"region": "west"}, backend="rigetti")


def test_nothing_is_no_request(quantum: ClusterGraph):
    for arguments in [(0, 1), (1, 0)]:
        with pytest.raises(JobspecError, match="expected a count of at least 1, got 0"):
            device_jobspecs(quantum, "qpu", arguments[0], slots=arguments[1])
    with pytest.raises(JobspecError, match="expected a count of at least 1, got 0"):
        compute_jobspec(PodShape(), 0)


def test_equal_roots_are_one_tree():
    (jobspec,) = device_jobspecs(graph_of("resources: [{type: fpga, count: 4}]"), "fpga", 3)
    assert shape(jobspec) == "slot1(node3)"
    assert jobspec.constraints == {"properties": ["virtual=true", "class=fpga"]}


def test_a_resource_that_merely_contains_the_type_is_not_taken_for_it():
    graph = graph_of("resources: [{type: box, name: b, with: [{type: qpu}]}, {type: qpu, name: q}]")
    root, nested = device_jobspecs(graph, "qpu", 1)
    assert (shape(root), shape(nested)) == ("slot1(node1)", "node1(slot1(node1))")
    assert root.constraints
    assert root.constraints["and"][1] == {"ranks": [str(graph.virtual["/cluster/q"].rank)]}
    assert nested.constraints == {"properties": ["virtual=true", "class=qpu"]}


def test_an_overridden_attribute_can_be_required_although_the_ancestor_lacks_it():
    text = "resources: [{type: d, attributes: {v: ibm}, with: [{type: q, attributes: {v: rigetti}}, {type: q}]}]"
    graph = graph_of(text)
    (jobspec,) = device_jobspecs(graph, "q", 1, {"v": "rigetti"})
    ranks = [graph.virtual[path].rank for path in ("/cluster/d0", "/cluster/d0/q0")]
    assert ranks == [1, 2]
    assert jobspec.constraints == {"and": [{"properties": ["virtual=true", "class=q"]}, {"ranks": ["1-2"]}]}


def test_a_device_below_a_host_is_reached_through_the_host():
    graph = graph_of("resources: [{type: fpga, parent: n1}]")
    (jobspec,) = device_jobspecs(graph, "fpga", 1)
    assert shape(jobspec) == "node1(slot1(node1))"
    assert jobspec.constraints == {"ranks": ["0-1"]}


def test_several_devices_of_one_pod_agree_on_their_attributes():
    text = "resources: [{type: d, with: [{type: q, count: 2, attributes: {v: a}}, {type: q, attributes: {v: b}}]}]"
    graph = graph_of(text)
    (jobspec,) = device_jobspecs(graph, "q", 2)
    assert jobspec.constraints
    assert jobspec.constraints["and"][1] == {"ranks": ["1-3"]}
    assert [shape(found) for found in device_jobspecs(graph, "q", 1)] == ["node1(slot1(node1))"]
    with pytest.raises(NoMatchingDeviceError):
        device_jobspecs(graph, "q", 3)


def test_a_repeated_request_is_answered_anew_once_the_trees_changed():
    graph = build_graph(HOSTS, load_resources("resources: [{type: f, parent: n2, count: 2}]", "r"), True)
    n2 = HostResources("n2", 1, 0)
    with pytest.raises(UnknownDeviceTypeError):
        device_jobspecs(graph, "f", 1)
    graph.add_host(n2)
    first = device_jobspecs(graph, "f", 1)
    assert device_jobspecs(graph, "f", 1) is first
    graph.remove_host("n2")
    with pytest.raises(UnknownDeviceTypeError):
        device_jobspecs(graph, "f", 1)
    graph.add_host(n2)
    assert device_jobspecs(graph, "f", 1) is not first


SHARED = """
resources:
- type: farm
  name: east
  with: [{type: qpu, name: x, sharing: 3, with: [{type: qubit, count: 4}]}, {type: qpu, name: y, with: [{type: qubit}]}]
- {type: qpu, name: lone, count: 2, sharing: 2}
"""


def test_of_what_is_shared_a_pod_gets_one_place_of_each_of_so_many_devices():
    graph = graph_of(SHARED)
    assert shape(device_jobspecs(graph, "qpu", 2, backend="east")[0]) == "node1(node2(slot1(node1)))"
    assert {shape(jobspec) for jobspec in device_jobspecs(graph, "qpu", 1)} == {
        "node1(slot1(node1))",
        "node1(node1(slot1(node1)))",
    }
    (farm,) = device_jobspecs(graph, "farm", 1)
    assert shape(farm) == "slot1(node1)"


def test_what_lies_in_a_place_comes_from_one_place():
    graph = graph_of(SHARED)
    shapes = {shape(jobspec) for jobspec in device_jobspecs(graph, "qubit", 2)}
    assert shapes == {"node1(node1(node1(slot1(node2))))"}
    with pytest.raises(
        NoMatchingDeviceError,
        match="5 qubit cannot be divided equally among the parents of the 5 qubit in one resource tree",
    ):
        device_jobspecs(graph, "qubit", 5)


def test_several_pods_do_not_ask_for_shared_devices_at_once():
    with pytest.raises(NoMatchingDeviceError):
        device_jobspecs(graph_of(SHARED), "qpu", 1, slots=2)


def test_more_devices_than_a_tree_has_are_refused_however_many_places_these_have():
    with pytest.raises(NoMatchingDeviceError, match="no resource tree has more than 2 qpu, and the pod requests 3"):
        device_jobspecs(graph_of(SHARED), "qpu", 3)
