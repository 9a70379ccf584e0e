"""A user's program with strict type checks: it uses the whole public API as intended."""

import errno
from typing import Any, assert_type

from fluxion_cy import (
    NO_JOBID,
    Allocation,
    Busy,
    FluxionError,
    InvalidGraph,
    InvalidJobspec,
    JobExists,
    JobInfo,
    Matcher,
    NoSuchJob,
    NotSupported,
    Unsatisfiable,
)
from fluxion_cy.wording import Shortage, Words


def graph() -> dict[str, Any]:
    """A cluster of two nodes with two cores each, in JGF."""
    paths = ["/cluster0", *(f"/cluster0/node{n}{core}" for n in (0, 1) for core in ("", "/core0", "/core1"))]
    nodes, edges = [], []
    for number, path in enumerate(paths):
        name = path.rpartition("/")[2]
        rank = -1 if number == 0 else int(path[len("/cluster0/node")])
        metadata = {"type": name[:-1], "id": int(name[-1]), "rank": rank, "paths": {"containment": path}}
        nodes.append({"id": str(number), "metadata": metadata})
        if number:
            edges.append({"source": str(paths.index(path.rpartition("/")[0])), "target": str(number)})
    return {"graph": {"nodes": nodes, "edges": edges}}


def job(cores: int, duration: float = 10) -> dict[str, Any]:
    """A slot for each core."""
    slot = {"type": "slot", "count": cores, "label": "task", "with": [{"type": "core", "count": 1}]}
    system = {"system": {"duration": duration}}
    return {"version": 1, "resources": [slot], "tasks": [], "attributes": system}


def matching(matcher: Matcher) -> None:
    """Every kind of request."""
    first = matcher.allocate(job(2), now=0, candidates=[True, False], prefer=[1.0, 2.0])
    assert_type(first, Allocation)
    assert_type((first.jobid, first.at, first.reserved, first.overhead), tuple[int, int, bool, float])
    assert_type(matcher.allocate_orelse_reserve(job(4)).at, int)
    assert matcher.without_allocating(job(1)).jobid == NO_JOBID
    assert matcher.without_allocating_future(job(4)).at > 0
    assert_type(matcher.satisfy(job(5)), bool)
    assert_type(matcher.why(job(5)), str)
    short = matcher.shortage(job(5), now=0, candidates=[True, True], words=Words())
    assert_type(short, Shortage | None)
    if short is not None:
        assert_type((short.reason, short.wanted, short.fitting, short.at_most), tuple[str, int, int, bool])
    try:
        matcher.allocate_with_satisfiability(job(5), jobid=77)
    except (Busy, Unsatisfiable) as error:
        assert_type(error.errno, int)
        print(errno.errorcode[error.errno])
    for jobid, kind in ((first.jobid, JobExists), (-1, InvalidJobspec)):
        try:
            matcher.allocate(job(1), jobid)
        except FluxionError as refusal:
            print(kind, refusal)


def holding(matcher: Matcher) -> None:
    """Allocations."""
    held = matcher.allocation(1)
    info = matcher.info(held.jobid)
    assert_type(info, JobInfo)
    assert_type((info.jobid, info.mode, info.reserved, info.at), tuple[int, str, bool, int])
    assert_type(matcher.partial_cancel(1, held.R, missing_ok=True, now=1), bool)
    matcher.cancel(2, now=1)
    matcher.retract(1)
    assert_type(matcher.update_allocate(9, held.R, now=2), Allocation)
    assert_type(matcher.moved(), list[int])
    matcher.next_jobid = matcher.next_jobid + 10
    assert_type(matcher.next_jobid, int)
    try:
        matcher.cancel(12345)
    except NoSuchJob as error:
        print(error)


def changing(matcher: Matcher) -> None:
    """Changes of the graph."""
    matcher.clone().close()
    copy = matcher.clone()
    assert_type(copy, Matcher)
    assert_type(copy.graph(), dict[str, Any])
    assert_type(copy.find("status=up", now=3), dict[str, Any] | None)
    assert_type(copy.stat(), dict[str, Any])
    copy.set_status("/cluster0/node1", up=False)
    assert_type(copy.get_status("/cluster0/node1"), bool)
    copy.set_rank_status("0-1", True)
    assert_type(copy.get_rank_status(0), bool)
    copy.set_properties("/cluster0/node0", {"fast": ""})
    copy.resize("/cluster0/node1/core0", 2)
    copy.remove_subgraph("/cluster0/node1")
    copy.add_subgraph(graph())
    try:
        copy.get_status("/nowhere")
    except InvalidGraph as error:
        print(error)


def main() -> None:
    """Run all of it on an available engine, and on one that is missing."""
    matcher = Matcher(graph(), "low", match_format="jgf", prune_filters="ALL:core", compatible=False, replan=True)
    matching(matcher)
    holding(matcher)
    changing(matcher)
    try:
        Matcher(graph(), engine="reapi", library="/nowhere/libreapi_cli.so")
    except NotSupported as error:
        print(error)


if __name__ == "__main__":
    main()
