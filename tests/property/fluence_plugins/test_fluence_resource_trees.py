"""Random resource trees: inheritance and propagation, and their effect on the graph and its jobspecs."""

import json

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fluence_plugins.fluence.errors import NoMatchingDeviceError
from fluence_plugins.fluence.graph.cluster_graph import HostResources, build_graph
from fluence_plugins.fluence.graph.placement import DeviceHolding, Placement
from fluence_plugins.fluence.graph.resource_set import allocation_from_placement, placement_from_allocation
from fluence_plugins.fluence.matching.jobspecs import device_jobspecs
from fluence_plugins.resources.config import load_resources
from fluxion_cy import FluxionError, Matcher

from ...tools.examples import examples

TYPES, KEYS, VALUES = ["a", "b", "c"], ["x", "y"], ["1", "2", ""]
attributes = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES), max_size=2)


def entries(**optional):
    required = {"type": st.sampled_from(TYPES), "attributes": attributes}
    return st.fixed_dictionaries(required, optional={"count": st.integers(1, 3), **optional})


trees = st.recursive(entries(), lambda inner: entries(**{"with": st.lists(inner, max_size=3)}), max_leaves=6)
forests = st.lists(trees, min_size=1, max_size=3)
bounded = settings(max_examples=examples(80), deadline=None)


def load(forest):
    return load_resources(json.dumps({"resources": forest}), "resources.json")


def pairs(written, loaded, above=()):
    """Yield (loaded resource, written entries from the root down to it)."""
    for entry, resource in zip(written, loaded, strict=True):
        yield resource, (*above, entry)
        yield from pairs(entry.get("with", []), resource.children, (*above, entry))


def written_types(entry):
    return {entry["type"]}.union(*(written_types(child) for child in entry.get("with", [])))


@bounded
@given(forests)
def test_an_attribute_has_the_value_of_the_nearest_entry_that_sets_it(forest):
    for resource, line in pairs(forest, load(forest).resources):
        for key in KEYS:
            nearest = next((entry["attributes"][key] for entry in reversed(line) if key in entry["attributes"]), "")
            assert resource.attributes.get(key, "") == nearest


@bounded
@given(forests)
def test_classes_are_the_own_type_and_all_types_below(forest):
    for resource, line in pairs(forest, load(forest).resources):
        assert resource.classes() == written_types(line[-1])


@bounded
@given(forests)
def test_a_vertex_carries_every_class_below_it_and_shares_no_rank(forest):
    graph = build_graph([HostResources("host", 1, 1)], load(forest))
    for node in graph.virtual.values():
        below = {other.type for path, other in graph.virtual.items() if f"{path}/".startswith(f"{node.path}/")}
        assert {name for name in node.properties if name.startswith("class=")} == {f"class={kind}" for kind in below}
        assert {f"{key}={value}" for key, value in node.attributes.items()} <= node.properties
    ranks = [node.rank for node in graph.virtual.values()]
    assert len({*ranks, graph.host_ranks["host"]}) == len(ranks) + 1
    assert len(graph.virtual) == sum(root.size() for root in graph.config.resources)


def satisfies(node, constraint, properties):
    """RFC 31, for the constraints of device jobspecs."""
    ((operator, values),) = constraint.items()
    if operator == "and":
        return all(satisfies(node, value, properties) for value in values)
    if operator == "properties":
        return set(values) <= properties
    assert operator == "ranks"
    bounds = [[int(bound) for bound in part.split("-")] for part in values[0].split(",")]
    return any(run[0] <= node.rank <= run[-1] for run in bounds)


def reachable(graph, jobspec):
    """Return, by the path of their parent, the vertices that the jobspec's innermost `node` can be."""
    depth, resource = 0, jobspec.resources[0]
    while resource.type != "slot":
        depth, resource = depth + 1, resource.with_[0]
    passing = {p for p, node in graph.virtual.items() if satisfies(node, jobspec.constraints, node.properties)}
    found = {}
    for path in passing:
        node = graph.virtual[path]
        if len(node.above) == depth and passing.issuperset(node.above):
            found.setdefault(node.above, []).append(node)
    return found


@bounded
@given(forests, st.sampled_from(TYPES), st.dictionaries(st.sampled_from(KEYS), st.sampled_from("12"), max_size=1),
       st.integers(1, 3))  # fmt: skip
def test_a_device_jobspec_reaches_exactly_the_devices_that_meet_it(forest, kind, require, count):
    graph = build_graph([], load(forest))
    wanted = {
        path for path, node in graph.virtual.items() if node.type == kind and require.items() <= node.attributes.items()
    }
    assume(wanted)
    try:
        jobspecs = device_jobspecs(graph, kind, count, require)
    except NoMatchingDeviceError:
        assert count > 1
        return
    reached = set()
    for jobspec in jobspecs:
        for siblings in reachable(graph, jobspec).values():
            reached |= {node.path for node in siblings}
            if count > 1:
                assert len({node.entry for node in siblings}) == 1
                assert len({tuple(sorted(node.attributes.items())) for node in siblings}) == 1
    assert reached <= wanted
    if count == 1:
        assert reached == wanted


@bounded
@given(forests, st.randoms(use_true_random=False))
def test_recorded_devices_become_an_equal_allocation(forest, random):
    graph = build_graph([], load(forest))
    nodes = list(graph.virtual.values())
    chosen = random.sample(nodes, min(2, len(nodes)))
    assume(not any(f"{one.path}/".startswith(f"{two.path}/") for one in chosen for two in chosen if one is not two))
    held = sorted((DeviceHolding(n.path, n.backend, n.attributes) for n in chosen), key=lambda device: device.path)
    placement = Placement(devices=tuple(held))
    assert placement_from_allocation(allocation_from_placement(graph, placement)) == placement


@settings(max_examples=examples(60), deadline=None)
@given(forests, st.sampled_from(TYPES), st.integers(1, 3))
def test_the_matcher_allocates_each_device_once_until_all_are_used(forest, kind, count):
    graph = build_graph([HostResources("host", 1, 1)], load(forest))
    assume(any(node.type == kind for node in graph.virtual.values()))
    matcher = Matcher(graph.jgf())
    try:
        jobspecs = device_jobspecs(graph, kind, count)
    except NoMatchingDeviceError:
        return
    taken = set()
    for jobid in range(1, len(graph.virtual) + 2):
        placement = first_match(matcher, jobspecs, jobid)
        if placement is None:
            break
        nodes = [graph.virtual[device.path] for device in placement.devices]
        assert [node.type for node in nodes] == [kind] * count
        assert len({node.entry for node in nodes}) == 1
        assert placement.attributes == nodes[0].attributes
        assert not any(covers(old, node.path) or covers(node.path, old) for node in nodes for old in taken)
        taken |= {node.path for node in nodes}
    else:
        raise AssertionError("expected no more matches than devices")
    assert taken
    if count == 1:
        of_kind = {path for path, node in graph.virtual.items() if node.type == kind}
        assert all(any(covers(one, path) or covers(path, one) for one in taken) for path in of_kind)


def first_match(matcher, jobspecs, jobid):
    for jobspec in jobspecs:
        try:
            return placement_from_allocation(matcher.allocate(jobspec.to_json(), jobid=jobid).R)
        except FluxionError:
            continue
    return None


def covers(outer, inner):
    return f"{inner}/".startswith(f"{outer}/")
