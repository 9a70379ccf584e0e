"""What the jobspecs really get, from the embedded matcher."""

import pytest

from fluence_plugins.fluence.graph.accounting import PodShape
from fluence_plugins.fluence.graph.cluster_graph import HostResources, build_graph
from fluence_plugins.fluence.graph.resource_set import (
    allocation_from_placement,
    placement_from_allocation,
    placement_on_host,
)
from fluence_plugins.fluence.matching.jobspecs import compute_jobspec, device_jobspecs
from fluence_plugins.resources.config import load_resources
from fluxion_cy import FluxionError, Matcher

CONFIG = """
resources:
- type: qdevice
  name: rigetti
  attributes: {region: east, vendor: r}
  with: [{type: qpu, count: 2, with: [{type: qubit, count: 4}]}]
- type: qdevice
  name: ibm
  attributes: {region: west, vendor: i}
  with: [{type: qpu, attributes: {vendor: other}, with: [{type: qubit, count: 3}]}]
- {type: box, name: box, with: [{type: licence}]}
- {type: licence, name: pool, count: 3}
- {type: fpga, parent: n2, name: alveo}
"""
HOSTS = [HostResources("n1", 4, 1000, 1), HostResources("n2", 4, 1000)]


class Cluster:
    def __init__(self, hosts=tuple(HOSTS), config=CONFIG):
        self.graph = build_graph(hosts, load_resources(config, "resources.yaml"))
        self.matcher = Matcher(self.graph.jgf())
        self.jobid = 0

    def take(self, jobspec):
        self.jobid += 1
        return placement_from_allocation(self.matcher.allocate(jobspec.to_json(), jobid=self.jobid).R)

    def pods(self, count, **shape):
        return self.take(compute_jobspec(PodShape(**shape), count))

    def devices(self, kind, count=1, **options):
        """Take devices with the first jobspec that gets any."""
        for jobspec in device_jobspecs(self.graph, kind, count, **options):
            try:
                return [device.path.removeprefix("/cluster/") for device in self.take(jobspec).devices]
            except FluxionError:
                continue
        return None


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_several_pods_share_a_host_and_its_memory(cluster: Cluster):
    placement = cluster.pods(4, cores=2, memory_mib=300)
    assert [(host.name, len(host.cores), host.memory_mib) for host in placement.hosts] == [
        ("n1", 4, 600), ("n2", 4, 600),
    ]  # fmt: skip
    assert placement.devices == ()


def test_a_pod_never_spans_hosts(cluster: Cluster):
    with pytest.raises(FluxionError):
        cluster.pods(1, cores=5)
    with pytest.raises(FluxionError):
        cluster.pods(1, memory_mib=1001)
    assert len(cluster.pods(1, cores=3).hosts) == 1
    assert len(cluster.pods(1, cores=3).hosts) == 1
    with pytest.raises(FluxionError):
        cluster.pods(1, cores=2)


def test_memory_is_what_runs_out(cluster: Cluster):
    assert sum(host.memory_mib for host in cluster.pods(2, memory_mib=700).hosts) == 1400
    with pytest.raises(FluxionError):
        cluster.pods(1, memory_mib=301)
    assert cluster.pods(1, memory_mib=300).hosts[0].memory_mib == 300


def test_a_gpu_pod_lands_where_the_gpu_is(cluster: Cluster):
    (host,) = cluster.pods(1, gpus=1).hosts
    assert (host.name, host.gpus) == ("n1", (0,))
    with pytest.raises(FluxionError):
        cluster.pods(1, gpus=1)


def test_devices_of_a_leaf_come_from_one_tree(cluster: Cluster):
    found = cluster.devices("qubit", 3)
    assert len(found) == 3
    assert len({path.rpartition("/")[0] for path in found}) == 1


def test_devices_are_spread_evenly_where_no_single_parent_has_enough(cluster: Cluster):
    found = cluster.devices("qubit", 6)
    assert sorted(path.split("/")[:2] for path in found) == [["rigetti", "qpu0"]] * 3 + [["rigetti", "qpu1"]] * 3


def test_a_type_in_the_middle_is_taken_itself_and_not_what_holds_it(cluster: Cluster):
    assert sorted(cluster.devices("qpu", 2)) == ["rigetti/qpu0", "rigetti/qpu1"]
    assert cluster.devices("qpu", 1) == ["ibm/qpu0"]
    assert cluster.devices("qpu", 1) is None


def test_who_holds_a_device_holds_what_is_in_it_and_keeps_it_from_being_taken_whole(cluster: Cluster):
    (qubit,) = cluster.devices("qubit", 1, backend="ibm")
    assert qubit.startswith("ibm/qpu0/qubit")
    assert cluster.devices("qpu", 1, backend="ibm") is None
    assert cluster.devices("qdevice", 1, backend="ibm") is None
    assert cluster.devices("qubit", 2, backend="ibm") is not None
    assert cluster.devices("qdevice") == ["rigetti"]
    assert cluster.devices("qubit") is None


def test_cancelling_frees_a_device(cluster: Cluster):
    assert cluster.devices("qdevice", backend="ibm") == ["ibm"]
    assert cluster.devices("qubit", backend="ibm") is None
    cluster.matcher.cancel(1)
    assert cluster.devices("qubit", 3, backend="ibm") is not None


def test_required_attributes_choose_the_tree(cluster: Cluster):
    assert cluster.devices("qubit", 1, require={"region": "west"})[0].startswith("ibm/")
    assert cluster.devices("qdevice", require={"region": "east"}) == ["rigetti"]


def test_an_attribute_that_a_child_overrides_can_be_required(cluster: Cluster):
    assert cluster.devices("qpu", require={"vendor": "other"}) == ["ibm/qpu0"]


def test_what_merely_contains_a_type_is_not_taken_for_it(cluster: Cluster):
    taken = [cluster.devices("licence")[0] for _ in range(4)]
    assert sorted(taken) == ["box/licence0", "pool0", "pool1", "pool2"]
    assert cluster.devices("licence") is None


def test_several_roots_come_from_one_tree(cluster: Cluster):
    assert sorted(cluster.devices("licence", 3)) == ["pool0", "pool1", "pool2"]


def test_a_device_below_a_host_leaves_the_host_to_pods(cluster: Cluster):
    assert cluster.devices("fpga") == ["n2/alveo"]
    assert cluster.devices("fpga") is None
    assert sum(len(host.cores) for host in cluster.pods(8).hosts) == 8


def test_each_slot_of_a_match_gets_its_devices(cluster: Cluster):
    (jobspec,) = device_jobspecs(cluster.graph, "qubit", 2, slots=2, backend="rigetti")[:1]
    assert len(cluster.take(jobspec).devices) == 4


def test_the_answer_tells_backend_and_attributes(cluster: Cluster):
    (jobspec, *_) = device_jobspecs(cluster.graph, "qubit", 2, backend="ibm")
    placement = cluster.take(jobspec)
    assert placement.backend == "ibm"
    assert placement.attributes == {"region": "west", "vendor": "other"}


def test_a_loaded_graph_grows_and_shrinks_with_its_hosts(cluster: Cluster):
    with pytest.raises(FluxionError):
        cluster.pods(1, cores=6)
    cluster.matcher.add_subgraph(cluster.graph.add_host(HostResources("n3", 8, 100)))
    (host,) = cluster.pods(1, cores=6).hosts
    assert host.name == "n3"
    cluster.matcher.cancel(cluster.jobid)
    cluster.matcher.remove_subgraph(cluster.graph.remove_host("n3"))
    with pytest.raises(FluxionError):
        cluster.pods(1, cores=6)


def test_recorded_names_hold_the_same_again_in_a_graph_with_other_ranks(cluster: Cluster):
    (jobspec, *_) = device_jobspecs(cluster.graph, "qubit", 2, backend="ibm")
    held = cluster.pods(1, cores=3, memory_mib=800, gpus=1).merged(cluster.take(jobspec))
    later = Cluster(hosts=[HostResources("n0", 1, 10), *reversed(HOSTS)])
    later.matcher.update_allocate(7, allocation_from_placement(later.graph, held))
    assert later.devices("qubit", 2, backend="ibm") is None
    with pytest.raises(FluxionError):
        later.pods(1, gpus=1)
    assert sum(len(host.cores) for host in later.pods(6).hosts) == 6
    with pytest.raises(FluxionError):
        later.pods(1)
    later.matcher.cancel(7)
    assert later.pods(1, cores=3, memory_mib=800, gpus=1).hosts[0].name == "n1"


@pytest.mark.parametrize("policy", ["first", "lonode", "hinodex"])
@pytest.mark.parametrize("shape", [{"cores": 1}, {"cores": 3, "memory_mib": 300}, {"cores": 2, "gpus": 1}])
def test_what_one_host_gives_is_read_alike_either_way(policy, shape):
    graph = build_graph([HostResources("n1", 4, 1000, 2)], load_resources(CONFIG.replace("n2", "n1"), "resources.yaml"))
    matcher = Matcher(graph.jgf(), policy=policy)
    found = matcher.allocate(compute_jobspec(PodShape(**shape), 1).to_json(), jobid=1)
    placement = placement_on_host(found.R)
    assert placement == placement_from_allocation(found.R)
    assert placement.hosts[0].exclusive == policy.endswith("x")
    assert len(placement.hosts[0].cores) == (4 if policy.endswith("x") else shape["cores"])


FOUR = """
resources:
- {type: qpu, name: none, attributes: {region: west, vendor: z}}
- {type: qpu, name: one, attributes: {region: east, vendor: z}}
- {type: qpu, name: both, attributes: {region: east, vendor: a}}
- {type: qpu, name: other, attributes: {region: west, vendor: a}}
"""


@pytest.mark.parametrize("policy", ["first", "low", "high", "lonode"])
def test_devices_that_satisfy_more_preferences_are_taken_first_and_the_others_at_last(policy):
    cluster = Cluster(config=FOUR)
    cluster.matcher = Matcher(cluster.graph.jgf(), policy=policy)
    prefer = {"region": "east", "vendor": "a"}
    taken = [cluster.devices("qpu", prefer=prefer) for _ in range(5)]
    assert taken[0] == ["both"]
    assert sorted(taken[1:3]) == [["one"], ["other"]]
    assert taken[3:] == [["none"], None]


def test_a_preferred_backend_counts_like_an_attribute():
    assert Cluster(config=FOUR).devices("qpu", prefer={"backend": "none"}) == ["none"]
    prefer = {"backend": "one", "region": "west", "vendor": "a"}
    assert Cluster(config=FOUR).devices("qpu", prefer=prefer) == ["other"]


def test_preferences_choose_among_what_is_required():
    cluster = Cluster(config=FOUR)
    options = {"require": {"region": "west"}, "prefer": {"region": "east", "vendor": "a"}}
    assert [cluster.devices("qpu", **options) for _ in range(3)] == [["other"], ["none"], None]


def test_what_no_device_has_is_preferred_in_vain(cluster: Cluster):
    plain = device_jobspecs(cluster.graph, "qubit", 2)
    assert device_jobspecs(cluster.graph, "qubit", 2, prefer={"no such key": "a|b", "region": "nowhere"}) == plain


def test_too_few_preferred_devices_in_one_tree_leave_the_others(cluster: Cluster):
    assert cluster.devices("qubit", 4, prefer={"region": "west"}) == [f"rigetti/qpu1/qubit{i}" for i in range(4)]
    assert cluster.devices("qubit", 3, prefer={"region": "west"}) == [f"ibm/qpu0/qubit{i}" for i in range(3)]
