"""The property index changes no answer, and its cost does not grow with unrelated hosts."""

import random
from typing import Any

import pytest

from fluxion_cy import Busy, Matcher, Unsatisfiable


def graph(rng: random.Random, hosts: int) -> dict[str, Any]:
    vertices = [
        {"id": "0", "metadata": {"type": "cluster", "id": 0, "rank": -1, "paths": {"containment": "/cluster0"}}}
    ]
    edges = []
    for n in range(hosts):
        above = str(len(vertices))
        properties = {name: "" for name in "abc" if rng.random() < 0.06}
        metadata = {"type": "node", "id": n, "rank": n, "properties": properties}
        vertices.append({"id": above, "metadata": {**metadata, "paths": {"containment": f"/cluster0/node{n}"}}})
        edges.append({"source": "0", "target": above})
        for core in range(rng.randint(1, 3)):
            paths = {"containment": f"/cluster0/node{n}/core{core}"}
            leaf = {"type": "core", "id": core, "rank": n, "paths": paths}
            edges.append({"source": above, "target": str(len(vertices))})
            vertices.append({"id": str(len(vertices)), "metadata": leaf})
    return {"graph": {"nodes": vertices, "edges": edges}}


def job(constraint: dict[str, Any], count: int) -> dict[str, Any]:
    slot = {"type": "slot", "count": 1, "label": "t", "with": [{"type": "core", "count": 1}]}
    return {
        "version": 1,
        "resources": [{"type": "node", "count": count, "with": [slot]}],
        "tasks": [{"command": ["x"], "slot": "t", "count": {"per_slot": 1}}],
        "attributes": {"system": {"duration": 60, "constraints": constraint}},
    }


def answer(matcher: Matcher, spec: dict[str, Any], prefer: list[float] | None) -> object:
    try:
        found = matcher.allocate_orelse_reserve(spec, prefer=prefer)
    except (Busy, Unsatisfiable) as error:
        return type(error), str(error)
    return found.at, found.R


@pytest.mark.parametrize("policy", ["first", "low", "high", "lonode", "hinodex", "firstnodex", "locality", "pack"])
def test_the_index_gives_the_answers_of_a_search_without_it(policy: str) -> None:
    for seed in range(8):
        rng = random.Random(seed)
        document = graph(rng, 60)
        indexed, plain = Matcher(document, policy=policy), Matcher(document, policy=policy)
        for _ in range(40):
            names = rng.sample(["a", "b", "c", "nosuch"], rng.randint(1, 2))
            rule: dict[str, Any] = {rng.choice(["and", "or"]): [{"properties": [name]} for name in names]}
            prefer = [rng.random() for _ in range(60)] if rng.random() < 0.3 else None
            count = rng.randint(1, 2)
            twice_denied = {"not": [{"not": [rule]}]}  # the same constraint in a form that the index cannot serve
            assert answer(indexed, job(rule, count), prefer) == answer(plain, job(twice_denied, count), prefer)
            if rng.random() < 0.3:
                properties = {name: "" for name in "abc" if rng.random() < 0.1}
                path = f"/cluster0/node{rng.randrange(60)}"
                for matcher in (indexed, plain):
                    matcher.set_properties(path, properties)
            if rng.random() < 0.1:
                indexed, plain = indexed.clone(), plain.clone()


def test_a_device_added_later_is_found_by_its_property() -> None:
    matcher = Matcher(graph(random.Random(1), 60), policy="low")
    with pytest.raises(Unsatisfiable):
        matcher.allocate_with_satisfiability(job({"properties": ["qpu"]}, 1))
    device = {"type": "node", "id": 99, "rank": 99, "properties": {"qpu": ""}}
    paths = {"containment": "/cluster0/node99"}
    root = {"type": "cluster", "id": 0, "rank": -1, "paths": {"containment": "/cluster0"}}
    core = {"type": "core", "id": 0, "rank": 99, "paths": {"containment": "/cluster0/node99/core0"}}
    nodes = [
        {"id": "0", "metadata": root},
        {"id": "9000", "metadata": {**device, "paths": paths}},
        {"id": "9001", "metadata": core},
    ]
    edges = [{"source": "0", "target": "9000"}, {"source": "9000", "target": "9001"}]
    matcher.add_subgraph({"graph": {"nodes": nodes, "edges": edges}})
    spec = job({"properties": ["qpu"]}, 1)
    assert "node99" in str(matcher.allocate(spec).R)
    matcher.remove_subgraph("/cluster0/node99")
    with pytest.raises(Unsatisfiable):
        matcher.allocate_with_satisfiability(spec)
