import json

import pytest

from fluence_plugins.fluence.errors import AllocationError, AttributeConflictError
from fluence_plugins.fluence.graph.cluster_graph import ClusterGraph, HostResources, build_graph
from fluence_plugins.fluence.graph.placement import DeviceHolding, HostHolding, Placement
from fluence_plugins.fluence.graph.resource_set import allocation_from_placement, placement_from_allocation
from fluence_plugins.resources.config import load_resources

PREFIX = "fluence.flux-framework.org/"


def vertex(kind, path, **more):
    return {"id": path, "metadata": {"type": kind, "paths": {"containment": path}, **more}}


def allocation(*vertices):
    return {"graph": {"nodes": [vertex("cluster", "/c", id=0), *vertices], "edges": []}}


def properties(*names):
    return {"properties": dict.fromkeys(names, "")}


COMPUTE = allocation(
    vertex("node", "/c/n2", **properties("virtual=false")),
    vertex("core", "/c/n2/core10", id=10, exclusive=True),
    vertex("core", "/c/n2/core2", id=2, exclusive=True),
    vertex("gpu", "/c/n2/gpu0", id=0, exclusive=True),
    vertex("memory", "/c/n2/memory", id=0, size=512, exclusive=True),
    vertex("node", "/c/n1"),
    vertex("core", "/c/n1/core7", exclusive=True),
)
QUBITS = allocation(
    vertex("node", "/c/rigetti", **properties("virtual=true", "class=qdevice", "class=qubit", "region=east", "v=x")),
    *(
        vertex(
            "node", f"/c/rigetti/qubit{n}", exclusive=True, **properties("virtual=true", "class=qubit", "region=east")
        )
        for n in range(2)
    ),
)


def test_hosts_are_listed_with_the_indices_and_units_held():
    assert placement_from_allocation(COMPUTE).hosts == (
        HostHolding("n1", "/c/n1", cores=(7,)),
        HostHolding("n2", "/c/n2", cores=(2, 10), gpus=(0,), memory_mib=512),
    )


def test_devices_carry_their_backend_and_their_own_attributes_only():
    placement = placement_from_allocation(QUBITS)
    assert placement.hosts == ()
    assert placement.devices == (
        DeviceHolding("/c/rigetti/qubit0", "rigetti", {"region": "east"}),
        DeviceHolding("/c/rigetti/qubit1", "rigetti", {"region": "east"}),
    )
    assert placement.backend == "rigetti"
    assert placement.annotations() == {f"{PREFIX}backend": "rigetti", f"{PREFIX}attr-region": "east"}


def test_json_text_and_the_rv1_form_are_read_too():
    expected = placement_from_allocation(COMPUTE)
    assert placement_from_allocation(json.dumps(COMPUTE)) == expected
    assert placement_from_allocation({"version": 1, "execution": {}, "scheduling": COMPUTE}) == expected


def test_an_attribute_is_split_at_its_first_equals_sign():
    data = allocation(vertex("node", "/c/q", exclusive=True, **properties("virtual=true", "arn=a=b=c", "tag")))
    assert placement_from_allocation(data).attributes == {"arn": "a=b=c", "tag": ""}


def test_a_device_taken_whole_counts_once():
    data = allocation(
        vertex("node", "/c/q", exclusive=True, **properties("virtual=true")),
        vertex("node", "/c/q/u0", exclusive=True, **properties("virtual=true")),
    )
    assert [device.path for device in placement_from_allocation(data).devices] == ["/c/q"]


def test_a_host_above_a_device_is_only_the_way_to_it():
    data = allocation(vertex("node", "/c/n1"), vertex("node", "/c/n1/f", exclusive=True, **properties("virtual=true")))
    placement = placement_from_allocation(data)
    assert placement.hosts == ()
    assert placement.devices == (DeviceHolding("/c/n1/f", "f"),)


def test_a_host_taken_whole_is_marked():
    data = allocation(vertex("node", "/c/n1", exclusive=True), vertex("core", "/c/n1/core0", id=0, exclusive=True))
    assert placement_from_allocation(data).hosts == (HostHolding("n1", "/c/n1", cores=(0,), exclusive=True),)


def test_several_backends_are_listed_sorted():
    fpga = Placement(devices=(DeviceHolding("/c/alveo", "alveo", {"vendor": "amd"}),))
    both = placement_from_allocation(QUBITS).merged(fpga, placement_from_allocation(COMPUTE))
    assert both.backend == "alveo,rigetti"
    assert both.attributes == {"region": "east", "vendor": "amd"}
    assert [host.name for host in both.hosts] == ["n1", "n2"]


def test_devices_that_disagree_on_an_attribute_are_an_error_that_names_both():
    west = Placement(devices=(DeviceHolding("/c/ibm", "ibm", {"region": "west"}),))
    with pytest.raises(AttributeConflictError, match=r"/c/ibm \(region=west\) and /c/rigetti/qubit0 \(region=east\)"):
        placement_from_allocation(QUBITS).merged(west).annotations()


def test_a_placement_without_devices_annotates_nothing():
    assert placement_from_allocation(COMPUTE).annotations() == {}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "must be a graph of vertices"),
        ("{}", "must be a graph of vertices.*scheduling"),
        ('{"graph": {"nodes": [{"metadata": {"type": "core"}}]}}', "must be a graph of vertices.*paths"),
        (json.dumps(allocation(vertex("core", "/c/core0"))), "/c/core0: the allocation lacks the vertex's node"),
        (json.dumps(allocation(vertex("node", "/c/n"), vertex("core", "/c/n/core"))), "/c/n/core: has neither an id"),
    ],
)
def test_what_is_no_allocation_is_refused(bad, message):
    with pytest.raises(AllocationError, match=message):
        placement_from_allocation(bad)


CONFIG = "resources: [{type: qdevice, name: d, attributes: {r: e}, with: [{type: qubit, count: 3}]}]"


@pytest.fixture
def graph():
    return build_graph([HostResources("n1", 4, 1024, 1)], load_resources(CONFIG, "r"))


def test_an_allocation_formed_from_names_reads_back_as_the_same_placement(graph: ClusterGraph):
    placement = Placement(
        (HostHolding("n1", "/cluster/n1", (1, 3), (0,), 100),), (DeviceHolding("/cluster/d/qubit2", "d", {"r": "e"}),)
    )
    formed = allocation_from_placement(graph, placement)
    assert placement_from_allocation(formed) == placement
    paths = [node["metadata"]["paths"]["containment"] for node in formed["graph"]["nodes"]]
    assert paths[0] == "/cluster"
    assert len(formed["graph"]["edges"]) == len(paths) - 1


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        (Placement((HostHolding("n9", "/cluster/n9"),)), "/cluster/n9: no longer in the graph, but pods hold it"),
        (Placement((HostHolding("n1", "/cluster/n1", (3, 4), (2,)),)), "/cluster/n1: no longer has core4, gpu2"),
        (
            Placement((HostHolding("n1", "/cluster/n1", memory_mib=2000),)),
            "has 1024 MiB, but a pod holds 2000; delete the pod",
        ),
        (
            Placement(devices=(DeviceHolding("/cluster/d/qubit9", "d"),)),
            "/cluster/d/qubit9: no longer in the graph, but pods hold it",
        ),
    ],
)
def test_what_the_graph_lost_is_named(graph: ClusterGraph, placement, message):
    with pytest.raises(AllocationError, match=message):
        allocation_from_placement(graph, placement)


def test_an_empty_placement_is_an_empty_allocation(graph: ClusterGraph):
    formed = allocation_from_placement(graph, Placement())
    assert formed == {"graph": {"nodes": [], "edges": []}}
    assert placement_from_allocation(formed) == Placement()


def test_the_summary_of_a_placement_is_one_bounded_line():
    hosts = tuple(HostHolding(f"n{number}", f"/c/n{number}", (0, 1), (0,), 512) for number in range(100))
    devices = tuple(DeviceHolding(f"/c/aurora/qubit{number}", "aurora", {"region": "x"}) for number in range(8000))
    assert Placement(hosts[:1]).summary == "2 cores, 1 gpus, 512 MiB of n0"
    assert Placement((), devices[:1]).summary == "1 devices of aurora: /c/aurora/qubit0"
    summary = Placement(hosts, devices).summary
    assert summary.endswith("; 8000 devices of aurora: /c/aurora/qubit0 and 7999 more")
    assert len(summary) < 250
