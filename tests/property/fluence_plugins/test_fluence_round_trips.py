"""Whatever is written as YAML or JSON reads back as the same value."""

from hypothesis import given, settings
from hypothesis import strategies as st

from fluence_plugins.fluence.graph.jgf import JGFBuilder, Options
from fluence_plugins.fluence.graph.jobspec import Count, Jobspec, Resource, Task

from ...tools.examples import examples

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
words = st.one_of(st.sampled_from(["no", "null", "~", "1.0", "0x1f", "1:30", "true", "2020-01-02", "=", "<<"]), text)
plain = st.recursive(
    st.one_of(words, st.integers(-(2**53), 2**53), st.booleans(), st.none(), st.floats(allow_nan=False, width=32,
                                                                                       allow_infinity=False)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(words, inner, max_size=3)),
    max_leaves=8,
)  # fmt: skip
counts = st.one_of(
    st.integers(0, 2**32 - 1),
    st.integers(0, 9).map(Count),
    st.builds(Count, st.integers(0, 9), st.integers(9, 99), st.sampled_from("+*^"), st.integers(1, 4)),
)
resources = st.recursive(
    st.builds(Resource, st.sampled_from(["node", "core", "qpu"]), counts, unit=st.none() | words),
    lambda inner: st.builds(
        Resource,
        st.sampled_from(["slot", "node"]),
        counts,
        st.lists(inner, min_size=1, max_size=3).map(tuple),
        label=words.filter(bool),
        exclusive=st.none() | st.booleans(),
    ),
    max_leaves=6,
)
jobspecs = st.builds(
    Jobspec,
    version=st.integers(1, 9999),
    resources=st.lists(resources, min_size=1, max_size=3).map(tuple),
    tasks=st.lists(st.builds(Task, st.lists(words, max_size=3).map(tuple), words,
                             st.dictionaries(words, st.integers(0, 9), max_size=2)), max_size=2).map(tuple),
    attributes=st.dictionaries(words, plain, max_size=3),
)  # fmt: skip

names = st.text("abcXYZ019._-", min_size=1, max_size=8)
options = st.builds(
    Options,
    size=st.integers(0, 2**40),
    unit=words,
    exclusive=st.booleans(),
    rank=st.integers(-1, 1000),
    divisible=st.booleans(),
    node_properties=st.dictionaries(words, words, max_size=3),
    properties=st.dictionaries(st.sampled_from(["vendor", "qubits", "note"]), plain, max_size=2),
)


@st.composite
def graphs(draw):
    builder = JGFBuilder()
    vertices = [builder.add_root("cluster", options=draw(options))]
    for kind, index, chosen in draw(st.lists(st.tuples(names, st.integers(0, 99), options), max_size=8)):
        vertices.append(builder.add_child(vertices[index % len(vertices)], kind, f"{kind}-", chosen))
    return builder


@settings(max_examples=examples(80), deadline=None)
@given(jobspecs)
def test_a_jobspec_reads_back_as_itself(jobspec):
    assert Jobspec.from_yaml(jobspec.to_yaml()) == jobspec
    assert Jobspec.from_json(jobspec.to_json()) == jobspec


@settings(max_examples=examples(80), deadline=None)
@given(graphs())
def test_a_graph_reads_back_as_itself(graph):
    assert JGFBuilder.from_yaml(graph.to_yaml()) == graph
    assert JGFBuilder.from_json(graph.to_json()) == graph
