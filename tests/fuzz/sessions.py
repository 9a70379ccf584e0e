"""Random sessions for the real engine: an unusual graph, options and operations, each session from one seed.

Most of the generated input is well formed, so that it passes the checks and reaches the library; some is then mutated.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

from tests.fuzz.mutate import JUNK, mutated

from fluxion_cy import FluxionError, Matcher

# ruff: noqa: E501 - tables

TYPES = ("cluster", "node", "socket", "core", "gpu", "memory", "rack", "storage_node", "ssd", "qpu", "slot", "zone")
POLICIES = (
    "first", "firstnodex", "low", "high", "lonode", "hinode", "lonodex", "hinodex", "locality", "locality", "variation",
    "policy=low node_centric=true", "policy=high stop_on_1_matches=true node_exclusive=true", "policy=low", "policy=high",
)  # fmt: skip
FILTERS = (
    "ALL:core,ALL:node", "ALL:core", "ALL:node,ALL:core,ALL:gpu", "node:core", "cluster:node", "node:gpu,ALL:core",
    "ALL:memory", "core:core", "zone:qpu", "ALL:nothing", "cluster:core,rack:node,ALL:ssd",
)  # fmt: skip
FORMATS = (
    "jgf",
    "jgf",
    "jgf",
    "jgf_shorthand",
    "rv1",
    "rv1_nosched",
    "rv1_shorthand",
    "rlite",
    "simple",
    "pretty_simple",
    "rfc40",
)
ODD = (-1, 0, 1, 2, 7, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**53, 2**61, 2**62 - 1)
MATCHES = (
    "allocate", "allocate", "allocate", "allocate_orelse_reserve", "allocate_orelse_reserve", "allocate_with_satisfiability",
    "without_allocating", "without_allocating_future", "satisfy",
)  # fmt: skip


class Session:
    """One matcher of the real engine and its operations; `log` names each operation before the call."""

    def __init__(self, seed: int, log: Callable[[str], None]) -> None:
        self.source = Random(seed)
        self.odd = self.source.choice((0.0, 0.0, 0.02, 0.1))
        self.log = log
        self.jobs: dict[int, Any] = {}
        self.parts: list[dict[str, Any]] = []
        self.document = self.graph()

    def run(self) -> int:
        """Returns the number of operations that reached the library."""
        options = self.options()
        self.log(f"graph {json.dumps(options)} {json.dumps(self.document)}")
        try:
            matchers = [Matcher(self.document, engine="reapi", **options)]
        except FluxionError as error:
            self.log(f"  {type(error).__name__}: {error}")
            return 0
        done = 1
        for _ in range(self.source.randrange(1, 25)):
            name, call = self.operation(self.source.choice(matchers), matchers)
            self.log(name)
            try:
                call()
                done += 1
            except FluxionError as error:
                self.log(f"  {type(error).__name__} {error.errno}: {error}")
        return done

    # ---- what is made ------------------------------------------------------------------------------------------------

    def often(self, share: float) -> bool:
        return self.source.random() < share

    def number(self, usual: int) -> int:
        return self.source.choice(ODD) if self.often(self.odd) else usual

    def strange(self, value: Any) -> Any:
        """The value, or rarely a mutation of its text."""
        if not self.often(0.04):
            return value
        with suppress(ValueError):
            return json.loads(mutated(json.dumps(value).encode(), self.source))
        return value

    def vertex(self, outer: str, kind: str, local: int, rank: int, above: str, uniq: int) -> dict[str, Any]:
        source = self.source
        name = f"{kind}{local}" if self.often(0.9) else source.choice(("host7", "n-3", "x", f"{kind}00{local}"))
        metadata: dict[str, Any] = {"type": kind, "id": self.number(local), "rank": rank}
        metadata["paths"] = {"containment": f"{above}/{name}"}
        if name != f"{kind}{local}" or self.often(0.2):
            metadata["name"] = name
        if self.often(0.2):
            metadata["uniq_id"] = self.number(uniq)
        if self.often(0.1) or kind == "memory":
            metadata["size"] = self.number(source.choice((0, 1, 2, 16, 256)))
        if self.often(0.05):
            metadata["status"] = source.choice((0, 1))
        if self.often(0.1):
            metadata["properties"] = {"a": "", "perf_class": source.choice(("1", "x", "99999999999", "-5", ""))}
        if self.often(0.02):
            metadata["paths"]["power"] = f"/power0/{name}"
        if self.often(0.05):
            metadata["exclusive"] = True
        return {"id": outer, "metadata": metadata}

    def graph(self) -> Any:
        """A tree of random shape; types and levels repeat, ids have gaps and duplicates."""
        source = self.source
        kinds = source.sample(TYPES, source.randrange(1, 6))
        if self.often(0.8):
            kinds = source.choice(
                (
                    ["cluster", "node", "core"],
                    ["cluster", "node", "socket", "core"],
                    ["cluster", "rack", "node", "core"],
                    ["cluster", *kinds],
                )
            )
        if self.often(0.03):
            kinds = [source.choice(kinds) for _ in range(source.randrange(20, 150))]
        size = source.choice((1, 3, 10, 30, 60, 60))
        step, lone = source.choice((1, 1, 1, 2, 3)), self.often(0.2)
        nodes = [self.vertex("0", kinds[0], 0, -1, "", 0)]
        levels, edges, counts = [0], [], [0]
        while len(nodes) < size:
            parent = source.randrange(len(nodes)) if self.often(0.4) else len(nodes) - 1
            while levels[parent] + 1 >= len(kinds) and levels[parent]:
                parent = source.randrange(len(nodes))
            if len(kinds) == 1:
                break
            metadata = nodes[parent]["metadata"]
            level = levels[parent] + 1
            kind = kinds[level] if self.often(0.9) else source.choice(TYPES)
            rank = metadata["rank"]
            if (rank < 0 and kind in ("node", "rack")) or lone:
                rank = source.choice((len(nodes), counts[parent], -1))
            outer = str(len(nodes))
            local = counts[parent] * step if self.often(0.9) else source.randrange(4)
            nodes.append(self.vertex(outer, kind, local, rank, metadata["paths"]["containment"], len(nodes)))
            edges.append({"source": str(parent), "target": outer})
            counts[parent] += 1
            levels.append(level)
            counts.append(0)
        if self.often(0.2):
            source.shuffle(edges)
        return self.strange({"graph": {"nodes": nodes, "edges": edges}})

    def options(self) -> dict[str, Any]:
        source = self.source
        options = {"policy": source.choice(POLICIES), "match_format": source.choice(FORMATS)}
        if self.often(0.3):
            options["prune_filters"] = source.choice(FILTERS)
        if self.often(0.3):
            options["traverser"] = "flexible"
        return options

    def nodes(self) -> list[dict[str, Any]]:
        try:
            return [node for node in self.document["graph"]["nodes"] if isinstance(node["metadata"]["type"], str)]
        except (KeyError, TypeError):
            return []

    def kinds(self) -> list[str]:
        return [node["metadata"]["type"] for node in self.nodes()] or ["core"]

    def path(self) -> Any:
        nodes = self.nodes()
        if not nodes or self.often(0.05):
            return self.source.choice(("", "/", "//", "/cluster0", "cluster0", "/cluster0/", None, "\udcff", "/x\0"))
        return self.source.choice(nodes)["metadata"].get("paths", {}).get("containment")

    def count(self) -> Any:
        source = self.source
        usual = source.choice((1, 1, 1, 2, 3, 5))
        if self.often(0.85):
            return self.number(usual)
        step = source.choice("+*^")
        low = source.choice((1, 2, 3)) if step != "^" else source.choice((2, 3))
        most = low + source.choice((0, 1, 4, 100))
        operand = source.choice((1, 2, 3)) if step == "+" else source.choice((2, 3))
        return {"min": self.number(low), "max": self.number(most), "operator": step, "operand": self.number(operand)}

    def request(self, depth: int) -> dict[str, Any]:
        source = self.source
        kinds = self.kinds()
        kind = source.choice(kinds) if self.often(0.95) else source.choice(TYPES)
        asked: dict[str, Any] = {"type": kind, "count": self.count()}
        if self.often(0.25):
            asked = {"type": source.choice(("slot", "slot", "xor_slot")), "count": self.count(), "label": "a"}
        if self.often(0.15):
            asked["exclusive"] = source.choice((True, False))
        if depth < 5 and (self.often(0.5) or "label" in asked):
            asked["with"] = [self.request(depth + 1) for _ in range(source.choice((1, 1, 1, 2, 3)))]
        return asked

    def jobspec(self) -> Any:
        source = self.source
        if self.often(0.5):  # along the tree, so that it may match
            kinds = list(dict.fromkeys(self.kinds()))[:4]
            chain = kinds[source.randrange(len(kinds)) :]
            chain.insert(source.randrange(len(chain)), "slot")
            resources: list[Any] = []
            for kind in reversed(chain):
                more = {"with": resources} if resources else {}
                label = {"label": "a"} if kind == "slot" else {}
                resources = [{"type": kind, "count": self.count(), **label, **more}]
        else:
            resources = [self.request(0) for _ in range(source.choice((1, 1, 1, 2, 3)))]
        system: dict[str, Any] = {"duration": source.choice((0, 1, 10, 100, 1.5, 3600, 2**31, 3153600000, 3153599999))}
        if self.often(0.2):
            system["constraints"] = self.constraint(0)
        tasks = [{"command": ["a"], "slot": "a", "count": {"per_slot": 1}}]
        return self.strange({"version": 1, "resources": resources, "tasks": tasks, "attributes": {"system": system}})

    def constraint(self, depth: int) -> Any:
        source = self.source
        if depth < 4 and self.often(0.4):
            return {
                source.choice(("and", "or", "not")): [self.constraint(depth + 1) for _ in range(source.randrange(3))]
            }
        return source.choice(
            ({"properties": ["a"]}, {"properties": ["^a", "b"]}, {"hostlist": ["node[0-3]"]}, {"ranks": ["0-2"]},
             {"ranks": [""]}, {"hostlist": ["node1,node[2,5-7]x"]}, {}, {"properties": []}, {"hostlist": []}, {"ranks": []})
        )  # fmt: skip

    def criteria(self) -> Any:
        source = self.source
        words = ["status=up", "status=down", "sched-now=allocated", "sched-now=free", "sched-future=reserved",
                 "sched-future=free", "jobid-alloc=1", "jobid-span=1", "jobid-tag=1", "jobid-reserved=2", "jobid-tag=9999",
                 "agfilter=true", "agfilter=false", "names=node[0-2]", "property=a", "jobid-alloc=0", "jobid-tag=18446744073709551615",
                 "jobid-span=ƒ2", "names=x"]  # fmt: skip
        said = source.choice(words)
        for _ in range(source.randrange(4)):
            said = source.choice(
                (
                    f"{said} and {source.choice(words)}",
                    f"{said} or {source.choice(words)}",
                    f"not {said}",
                    f"({said})",
                    f"{said} {source.choice(words)}",
                )
            )
        if self.often(0.05):
            said = "(" * 300 + said + ")" * 300
        if self.often(0.1):
            said = mutated(said.encode(), source).decode("utf-8", "surrogateescape")
        return said

    def ranks(self) -> Any:
        return self.source.choice(
            ("all", "0", "0-3", "1,3", "", 0, 1, [0, 2], -1, [-1], "0-4294967295", "4294967295", "x", None)
        )

    def resources(self) -> Any:
        """The R of a job, a part of one, or the graph's own."""
        source = self.source
        held = [R for R in self.jobs.values() if isinstance(R, dict)] + self.parts
        if held and self.often(0.7):
            found = json.loads(json.dumps(source.choice(held)))
            graph = found.get("graph") or (found.get("scheduling") or {}).get("graph")
            if graph and self.often(0.5):
                graph["nodes"] = [node for node in graph["nodes"] if self.often(0.7)]
            return self.strange(found)
        if self.often(0.4):
            rows = [
                {
                    "rank": source.choice(("0", "1", "0-2", "7")),
                    "children": {source.choice(self.kinds()): source.choice(("0", "0-1", "3"))},
                }
            ]
            execution = {
                "R_lite": rows,
                "starttime": source.choice((0, 5, 2**40)),
                "expiration": source.choice((0, 10, 2**41)),
            }
            return self.strange({"version": 1, "execution": execution})
        nodes = [json.loads(json.dumps(node)) for node in self.nodes() if self.often(0.3)]
        for node in nodes:
            node["metadata"]["exclusive"] = self.often(0.7)
        bare = {"graph": {"nodes": nodes, "edges": []}}
        if self.often(0.5):
            return self.strange(bare)
        times = {"starttime": source.choice((0, 5, 2**40, 2**61)), "expiration": source.choice((0, 10, 2**41, 2**62))}
        return self.strange({"version": 1, "execution": times, "scheduling": bare})

    def subgraph(self) -> Any:
        """The path from the root to some vertex with a new child, or a branch that may have been removed."""
        source = self.source
        nodes, by_id = self.nodes(), {}
        for node in nodes:
            by_id[node.get("id")] = node
        if not nodes:
            return {}
        try:
            above = {edge["target"]: edge["source"] for edge in self.document["graph"]["edges"]}
            chain = [source.choice(nodes)["id"]]
            while chain[-1] in above and len(chain) < 300:
                chain.append(above[chain[-1]])
            kept = [by_id[outer] for outer in reversed(chain) if outer in by_id]
            edges = [{"source": above[outer], "target": outer} for outer in chain if outer in above]
            path = kept[-1]["metadata"]["paths"]["containment"]
            rank = kept[-1]["metadata"].get("rank", -1)
        except (KeyError, TypeError):
            return {}
        fresh, parent = [], chain[0]
        for i in range(source.randrange(4)):
            kind = source.choice(self.kinds()) if self.often(0.7) else source.choice((*TYPES, "newtype"))
            outer = str(1000 + source.randrange(50)) if self.often(0.9) else str(source.randrange(20))
            node = self.vertex(
                outer, kind, source.choice((i, 100 + i)), source.choice((rank, 50 + i, -1)), path, int(outer)
            )
            fresh.append(node)
            edges.append({"source": parent, "target": outer})
            if self.often(0.5):
                parent, path = outer, node["metadata"]["paths"]["containment"]
        return self.strange({"graph": {"nodes": kept + fresh, "edges": edges}})

    # ---- what is done ------------------------------------------------------------------------------------------------

    def jobid(self) -> Any:
        if self.jobs and self.often(0.9):
            return self.source.choice(list(self.jobs))
        return self.source.choice((0, 1, 2, 5, 2**63 - 1, 2**63, -1))

    def operation(self, matcher: Matcher, matchers: list[Matcher]) -> tuple[str, Callable[[], Any]]:
        source = self.source
        how = source.randrange(20)
        if how < 8:
            return self.match(matcher)
        if how < 10:
            jobid = self.jobid()
            return f"cancel {jobid}", lambda: matcher.cancel(jobid)
        if how == 10:
            jobid, part = self.jobid(), self.resources()
            return f"partial_cancel {jobid} {part}", lambda: matcher.partial_cancel(jobid, part)
        if how == 11:
            jobid, held = source.choice((100, 101, 102, 1, 2**63 - 1, 0)), self.resources()
            return f"update_allocate {jobid} {held}", lambda: self.held(matcher.update_allocate(jobid, held))
        if how == 12:
            said = self.criteria()
            return f"find {said[:200]!r}", lambda: matcher.find(said)
        if how == 13:
            path, up = self.path(), self.often(0.5)
            return f"status {path!r} {up}", lambda: (matcher.set_status(path, up), matcher.get_status(path))
        if how == 14:
            ranks, up = self.ranks(), self.often(0.5)
            return f"rank status {ranks!r} {up}", lambda: (
                matcher.set_rank_status(ranks, up),
                matcher.get_rank_status(ranks),
            )
        if how == 15:
            more = self.subgraph()
            return f"add_subgraph {json.dumps(more)}", lambda: matcher.add_subgraph(more)
        if how in (16, 17):
            path = self.path()
            return f"remove_subgraph {path!r}", lambda: matcher.remove_subgraph(path)
        if how == 18:
            return "clone", lambda: matchers.append(matcher.clone())
        jobid = self.jobid()
        return f"retract {jobid}, stat", lambda: (
            matcher.retract(jobid),
            matcher.stat(),
            matcher.graph(),
            matcher.info(jobid),
        )

    def match(self, matcher: Matcher) -> tuple[str, Callable[[], Any]]:
        source = self.source
        name, asked = source.choice(MATCHES), self.jobspec()
        jobid = None if self.often(0.9) else source.choice((1, 7, 2**63 - 1, 0, 2**63))
        candidates = None if self.often(0.9) else [self.often(0.5) for _ in range(source.randrange(6))]
        more: dict[str, Any] = {"candidates": candidates}
        if self.often(0.02):
            more[source.choice(("now", "prefer", "candidates"))] = source.choice(JUNK)
        if name == "satisfy":
            return f"satisfy {asked} {more}", lambda: matcher.satisfy(asked, **more)
        call = getattr(matcher, name)
        held = name.startswith("allocate")
        return f"{name} {jobid} {asked} {more}", lambda: self.held(call(asked, jobid, **more), held)

    def held(self, found: Any, held: bool = True) -> None:
        self.log(f"  {found.jobid} at {found.at}")
        if held:
            self.jobs[found.jobid] = found.R
        else:
            self.parts.append(found.R if isinstance(found.R, dict) else {})
