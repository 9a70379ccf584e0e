"""A fake Slurm in memory with the interface of SlurmClient, for tests without a real Slurm.

It does what slurmctld 26.05 does: jobs wait until `step` gives them nodes, in order of priority and number. Exclusive
jobs get whole nodes; other jobs get the lowest free cores and GPUs. Its time does not pass by itself.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from fluence_plugins.slurm_bridge.slurm.errors import (
    InvalidRequestError,
    JobNotPendingError,
    NodeBusyError,
    NodeExistsError,
    SlurmError,
    UnavailableError,
    UnknownNodeError,
)
from fluence_plugins.slurm_bridge.slurm.model import Gres, Job, JobComment, JobDefaults, JobList, NodeShare, SlurmNode
from fluence_plugins.slurm_bridge.slurm.placeholder import Placeholder

_ASKED: Final = re.compile(r"gres/([^:=,]+)(?::([^=,]+))?=([0-9]+)")


@dataclass(slots=True)
class _Kept:
    """A job, its request and its allocation."""

    job: Job
    asked: Placeholder
    candidates: tuple[str, ...]
    shares: dict[str, NodeShare] = field(default_factory=dict)


def external_node(name: str, cpus: int = 8, *, memory_mib: int = 32000, gres: str = "", **more: Any) -> SlurmNode:
    """An idle external node in the partition slurm-bridge."""
    states, own = frozenset({"IDLE", "EXTERNAL", "DYNAMIC_NORM"}), ("slurm-bridge",)
    said = {"features": own, "partitions": own, "states": states} | more
    return SlurmNode(name=name, cpus=cpus, memory_mib=memory_mib, gres=gres, **said)


class FakeSlurm:
    """See the module. `calls` are the writes, by method and subject; `reads` counts the other calls.

    `fails` are errors by method: the next call raises the first of them and does nothing. `loses` names methods whose
    next call is executed without a response. While it is `down` it answers nothing.
    """

    def __init__(self, nodes: Iterable[SlurmNode] = (), *, partitions: Sequence[str] = ("slurm-bridge",)) -> None:
        self.nodes_by_name = {node.name: node for node in nodes}
        self.partition_names = list(partitions)
        self.kept: dict[int, _Kept] = {}
        self.time = 1_000
        """Seconds; each change increases it by one."""
        self.changed = 0
        """When a job last changed."""
        self.next_id = 1
        self.calls: list[tuple[str, Any]] = []
        self.reads: dict[str, int] = {}
        self.fails: dict[str, deque[Exception]] = {}
        self.loses: list[str] = []
        self.down = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    # ------------------------------------------------------------------ for tests

    def step(self) -> list[int]:
        """Give nodes to as many waiting jobs as possible. Returns the started jobs."""
        started = []
        waiting = [kept for kept in self.kept.values() if kept.job.pending and kept.job.priority != 0]
        for kept in sorted(waiting, key=lambda one: (-(one.job.priority or 1), one.job.job_id)):
            shares = self._shares(kept)
            if shares is None:
                first = not any(one.job.pending and one.job.reason == "Resources" for one in waiting if one is not kept)
                if kept.job.reason not in ("Resources", "Priority"):
                    self._change(kept, reason="Resources" if first else "Priority")
                continue
            kept.shares = shares
            states = frozenset({"RUNNING"})
            self._change(kept, states=states, reason="", nodes=tuple(shares), start=self.time)
            started.append(kept.job.job_id)
        return started

    def end(self, job_id: int, state: str = "COMPLETED") -> None:
        """End a job and free its nodes. Slurm still lists it."""
        kept = self.kept[job_id]
        kept.shares = {}
        self._change(kept, states=frozenset({state}), end=self.time)

    def forget(self, job_id: int) -> None:
        """Remove a job from Slurm's list."""
        del self.kept[job_id]
        self.time += 1
        self.changed = self.time

    def hold(self, *names: str) -> int:
        """Allocate nodes to another user's job. Returns its number."""
        asked = Placeholder(name="other", pods=(), minimum_nodes=len(names), maximum_nodes=len(names))
        number = self._take(asked, JobDefaults("other"), names)
        kept = self.kept[number]
        kept.shares = {name: self._whole(self.nodes_by_name[name]) for name in names}
        self._change(kept, states=frozenset({"RUNNING"}), reason="", nodes=names, comment=None, start=self.time)
        return number

    def change(self, job_id: int, **changes: Any) -> None:
        """Change a job as another user does."""
        self._change(self.kept[job_id], **changes)

    def set_node(self, name: str, **changes: Any) -> SlurmNode:
        """Change a node as another user does."""
        self.nodes_by_name[name] = node = replace(self.nodes_by_name[name], **changes)
        return node

    def of(self, pod: str) -> list[Job]:
        """The jobs of a pod, which is given as namespace/name."""
        return [one.job for one in self.kept.values() if pod in [each.key for each in one.asked.pods]]

    # ------------------------------------------------------------------ jobs

    async def ping(self) -> None:
        self._read("ping")

    async def jobs(self, since: int = 0) -> JobList:
        self._read("jobs")
        if since and self.changed <= since:
            return JobList((), since, changed=False)
        return JobList(tuple(kept.job for kept in self.kept.values()), self.time)

    async def job(self, job_id: int) -> Job | None:
        self._read("job")
        kept = self.kept.get(job_id)
        return kept.job if kept is not None else None

    async def submit(self, job: Placeholder, defaults: JobDefaults, candidates: Sequence[str]) -> int:
        self._write("submit", (job, tuple(candidates)))
        self._check(job, defaults, candidates)
        number = self._take(job, defaults, candidates)
        self._answer("submit")
        return number

    async def update(self, job_id: int, job: Placeholder, defaults: JobDefaults, candidates: Sequence[str]) -> None:
        self._write("update", (job_id, job, tuple(candidates)))
        kept = self.kept.get(job_id)
        if kept is None or not kept.job.pending:
            raise JobNotPendingError(f"POST job/{job_id}", 2073, "Job is no longer pending execution")
        self._check(job, defaults, candidates)
        kept.asked, kept.candidates = job, tuple(candidates)
        self._change(kept, **self._said(job, defaults, candidates))
        self._answer("update")

    async def cancel(self, job_id: int) -> None:
        self._write("cancel", job_id)
        kept = self.kept.get(job_id)
        if kept is not None and not kept.job.ended:
            self.end(job_id, "CANCELLED")
        self._answer("cancel")

    async def resources(self, job_id: int) -> tuple[NodeShare, ...]:
        self._read("resources")
        kept = self.kept.get(job_id)
        return tuple(kept.shares.values()) if kept is not None else ()

    # ------------------------------------------------------------------ nodes

    async def nodes(self) -> tuple[SlurmNode, ...]:
        self._read("nodes")
        return tuple(self._as_told(node) for node in self.nodes_by_name.values())

    async def create_node(self, conf: str) -> None:
        self._write("create_node", conf)
        said = dict(word.partition("=")[::2] for word in conf.split(" "))
        name = said["NodeName"]
        request = "POST new/node"
        if name in self.nodes_by_name:
            raise NodeExistsError(request, 2168, "Node already exists in the node table")
        gres = said.get("Gres", "")
        if gres and not _configured(gres, said.get("GresConf", "")):
            raise SlurmError(request, 22, "Invalid argument")
        if said.get("Topology", "default:").partition(":")[0] != "default":
            raise SlurmError(request, 2178, "Requested topology configuration is not available")
        features = tuple(said["Feature"].split(",")) if "Feature" in said else ()
        self.nodes_by_name[name] = external_node(
            name,
            int(said["CPUs"]),
            memory_mib=int(said["RealMemory"]),
            gres=gres,
            features=features,
            partitions=tuple(one for one in self.partition_names if one in features),
            topology=said.get("Topology", ""),
            address=said.get("NodeAddr", name),
        )
        self._answer("create_node")

    async def update_node(
        self,
        name: str,
        *,
        state: str | None = None,
        reason: str | None = None,
        features: Sequence[str] | None = None,
        topology: str | None = None,
        comment: str | None = None,
        gres: str | None = None,
    ) -> None:
        """Changes of features do not change partitions: slurmctld evaluates features only when it creates a node."""
        said = {"state": state, "reason": reason, "features": features, "topology": topology, "comment": comment}
        given = {key: value for key, value in (said | {"gres": gres}).items() if value is not None}
        self._write("update_node", (name, given))
        if name not in self.nodes_by_name:
            raise UnknownNodeError(f"POST node/{name}", 2018, "Invalid node name specified")
        node = self.nodes_by_name[name]
        changes: dict[str, Any] = {}
        if topology and topology.partition(":")[0] != "default":
            raise SlurmError(f"POST node/{name}", 2178, "Requested topology configuration is not available")
        changes |= {key: given[key] for key in ("topology", "comment") if key in given}
        if features:
            changes["features"] = tuple(features)
        if state == "DRAIN":
            changes |= {"states": node.states | {"DRAIN"}, "reason": reason or ""}
        elif state == "UNDRAIN":
            changes |= {"states": node.states - {"DRAIN"}, "reason": ""}
        self.set_node(name, **changes)
        self._answer("update_node")

    async def delete_node(self, name: str) -> None:
        self._write("delete_node", name)
        if any(name in kept.shares for kept in self.kept.values()):
            raise NodeBusyError(f"DELETE node/{name}", 2016, "Requested nodes are busy")
        self.nodes_by_name.pop(name, None)
        self._answer("delete_node")

    async def partitions(self) -> tuple[str, ...]:
        self._read("partitions")
        return tuple(self.partition_names)

    # ------------------------------------------------------------------ internals

    def _read(self, method: str) -> None:
        self.reads[method] = self.reads.get(method, 0) + 1
        self._fail(method)

    def _write(self, method: str, about: object) -> None:
        self._fail(method)
        self.calls.append((method, about))

    def _fail(self, method: str) -> None:
        if self.down:
            raise UnavailableError(method, "no connection", sent=False)
        waiting = self.fails.get(method)
        if waiting:
            raise waiting.popleft()

    def _answer(self, method: str) -> None:
        if method in self.loses:
            self.loses.remove(method)
            raise UnavailableError(method, "the connection was lost", sent=True)

    def _check(self, job: Placeholder, defaults: JobDefaults, candidates: Sequence[str]) -> None:
        partition = job.partition or defaults.partition
        if partition not in self.partition_names:
            raise InvalidRequestError("POST job/submit", 2000, "Invalid partition name specified")
        usable = [name for name in candidates if name in self.nodes_by_name]
        if len(usable) < max(job.minimum_nodes, len(job.pods)):
            raise InvalidRequestError("POST job/submit", 2014, "Requested node configuration is not available")

    def _take(self, job: Placeholder, defaults: JobDefaults, candidates: Sequence[str]) -> int:
        number = self.next_id
        self.next_id += 1
        self.time += 1
        said = self._said(job, defaults, candidates)
        held = job.priority == 0
        made = Job(
            job_id=number,
            states=frozenset({"PENDING"}),
            reason="JobHeldUser" if held else "",
            submitted=self.time,
            flags=frozenset({"EXTERNAL_JOB"}),
            **said,
        )
        self.changed = self.time
        self.kept[number] = _Kept(made, job, tuple(candidates))
        return number

    @staticmethod
    def _said(job: Placeholder, defaults: JobDefaults, candidates: Sequence[str]) -> dict[str, Any]:
        return {
            "name": job.name,
            "comment": JobComment(job.pods, defaults.cluster),
            "partition": job.partition or defaults.partition,
            "exclusive": job.exclusive,
            "required_nodes": ",".join(candidates),
            "priority": 1 if job.priority is None else job.priority,
            "time_limit_minutes": job.time_limit_minutes,
        }

    def _change(self, kept: _Kept, **changes: Any) -> None:
        self.time += 1
        self.changed = self.time
        kept.job = replace(kept.job, **changes)

    def _taken(self, node: str) -> list[NodeShare]:
        return [kept.shares[node] for kept in self.kept.values() if node in kept.shares]

    def _as_told(self, node: SlurmNode) -> SlurmNode:
        taken = self._taken(node.name)
        used = sum(len(share.cores) for share in taken)
        state = "IDLE" if not taken else "ALLOCATED" if used >= node.cpus else "MIXED"
        states = node.states - {"IDLE", "ALLOCATED", "MIXED"} | {state}
        return replace(node, states=states, allocated_cpus=used)

    def _whole(self, node: SlurmNode) -> NodeShare:
        gres = tuple(Gres(name, type_, count, tuple(range(count))) for name, type_, count in _gres_of(node.gres))
        return NodeShare(node.name, tuple(range(node.cpus)), gres, node.memory_mib)

    def _shares(self, kept: _Kept) -> dict[str, NodeShare] | None:
        """The shares that the job would get now; None if it must wait."""
        asked = kept.asked
        number = max(asked.minimum_nodes, len(asked.pods))
        found: dict[str, NodeShare] = {}
        taken: dict[str, list[NodeShare]] = {}
        for one in self.kept.values():
            for name, share in one.shares.items():
                taken.setdefault(name, []).append(share)
        candidates = set(kept.candidates)
        for name, node in self.nodes_by_name.items():
            if len(found) < number and name in candidates and not node.drained and "DOWN" not in node.states:
                own = self._share(asked, node, taken.get(name, []))
                found |= {name: own} if own is not None else {}
        return found if len(found) == number else None

    def _share(self, asked: Placeholder, node: SlurmNode, taken: Sequence[NodeShare]) -> NodeShare | None:
        """The lowest free cores and devices; None if there are too few."""
        need = {(name, type_): int(count) for name, type_, count in _ASKED.findall(asked.gres)}
        have = _gres_of(node.gres)
        cpus = asked.tasks_per_node * (asked.cpus_per_task or 1)
        memory = asked.memory_mib if asked.memory_mib else 0
        if asked.exclusive:
            fits = cpus <= node.cpus and memory <= node.memory_mib and all(
                count <= sum(n for name, type_, n in have if name == key[0] and key[1] in ("", type_))
                for key, count in need.items()
            )  # fmt: skip
            return self._whole(node) if fits and not taken else None
        free = [core for core in range(node.cpus) if not any(core in share.cores for share in taken)]
        if len(free) < cpus or memory > node.memory_mib - sum(share.memory_mib for share in taken):
            return None
        gres = []
        for (name, type_), count in need.items():
            kind = next((one for one in have if one[0] == name and type_ in ("", one[1])), None)
            held = {i for share in taken for one in share.gres if kind and one.name == kind[0] for i in one.indices}
            left = [index for index in range(kind[2] if kind else 0) if index not in held]
            if kind is None or len(left) < count:
                return None
            gres.append(Gres(kind[0], kind[1], count, tuple(left[:count])))
        return NodeShare(node.name, tuple(free[:cpus]), tuple(gres), memory)


def _gres_of(text: str) -> list[tuple[str, str, int]]:
    """`gpu:2,gpu:v100:2` as name, type and count."""
    found = []
    for part in filter(None, text.split(",")):
        name, *type_, count = part.partition("(")[0].split(":")
        found.append((name, type_[0] if type_ else "", int(count)))
    return found


def _configured(gres: str, conf: str) -> bool:
    """Whether gres.conf lists a file for each device of the node's only kind."""
    kinds = _gres_of(gres)
    said = [word.partition("=")[::2] for word in conf.split(",")]
    files = [value for key, value in said if key == "file"]
    name, type_, count = kinds[0]
    wanted = {"name": name, "count": str(count)} | ({"type": type_} if type_ else {})
    return len(kinds) == 1 and wanted.items() <= dict(said).items() and len(set(files)) == len(files) == count
