"""Invariants that hold despite faults, checked with the API server's data alone.

`violations` may be called at any moment; `violations_at_rest` if nothing is in flight.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from http import HTTPStatus
from typing import Any

from .harness import ControlPlane

PREFIX = "fluence.flux-framework.org/"
HELD, PLAN, ATTEMPT = PREFIX + "held", PREFIX + "plan", PREFIX + "attempt"
SUB_GROUPS, SUB_GROUP = PREFIX + "sub-groups", PREFIX + "sub-group"
GROUPS = "/apis/scheduling.k8s.io/v1alpha2"
DEVICE_PREFIX = "fluxion.flux-framework.org/"
SHARED = "/@"
"""In the path of a device: a place of a shared device, or a device below such a place."""
_UNITS = {"m": Decimal("0.001"), "": Decimal(1), "k": Decimal(1000), "M": Decimal(10**6), "G": Decimal(10**9),
          "Ki": Decimal(1 << 10), "Mi": Decimal(1 << 20), "Gi": Decimal(1 << 30)}  # fmt: skip
Manifest = dict[str, Any]


class InvariantError(AssertionError):
    """The cluster is in a state that must never occur."""


@dataclass(frozen=True)
class State:
    """All pods, groups and nodes of a cluster, from the API server."""

    pods: list[Manifest]
    groups: list[Manifest]
    nodes: list[Manifest]
    lost_nodes: frozenset[str] = frozenset()
    """Nodes that a test removed: pods that were bound to them are allowed."""

    @property
    def live(self) -> list[Manifest]:
        """The pods that are bound and have not ended."""
        return [pod for pod in self.pods if is_bound(pod) and not has_ended(pod)]

    def members(self, group: Manifest) -> list[Manifest]:
        """The pods that name a group."""
        own = group["metadata"]
        return [pod for pod in self.pods
                if pod["metadata"]["namespace"] == own["namespace"] and group_name(pod) == own["name"]]  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """A PodGroup's plan, decoded by the tests' own reader of the documented format."""

    attempt: str
    state: str
    pods: Mapping[str, Manifest] = field(default_factory=dict)
    """By uid: {"name", "node", …}."""


def read_state(plane: ControlPlane, lost_nodes: Iterable[str] = ()) -> State:
    """Return the current state, as administrator. Groups come first: no condition is newer than its pods."""
    groups, pods, nodes = (_list(plane, path) for path in (f"{GROUPS}/podgroups", "/api/v1/pods", "/api/v1/nodes"))
    return State(pods, groups, nodes, frozenset(lost_nodes))


def _list(plane: ControlPlane, path: str) -> list[Manifest]:
    status, answer = plane.request("GET", path)
    if status != HTTPStatus.OK:
        raise InvariantError(f"GET {path}: {status}: {answer}")
    items: list[Manifest] = answer["items"]
    return items


# ---------------------------------------------------------------------- single objects


def key_of(obj: Manifest) -> str:
    """Return namespace/name."""
    return f"{obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}"


def is_bound(pod: Manifest) -> bool:
    """Whether it is bound to a node."""
    return bool(pod["spec"].get("nodeName"))


def has_ended(pod: Manifest) -> bool:
    """Whether it is Succeeded or Failed."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def is_leaving(pod: Manifest) -> bool:
    """Whether it is being deleted."""
    return "deletionTimestamp" in pod["metadata"]


def group_name(pod: Manifest) -> str | None:
    """Return the PodGroup that a pod names."""
    name: str | None = (pod["spec"].get("schedulingGroup") or {}).get("podGroupName")
    return name


def min_count(group: Manifest) -> int:
    """Return a gang's minimum count; 0 for other groups."""
    return int((group["spec"]["schedulingPolicy"].get("gang") or {}).get("minCount", 0))


def short_of(group: Manifest, members: Iterable[Manifest]) -> dict[str, int]:
    """Return by sub-group how many of its minimum these pods lack."""
    text = annotation(group, SUB_GROUPS) or ""
    there = Counter((pod["metadata"].get("labels") or {}).get(SUB_GROUP) for pod in members)
    minima = (part.split("=") for part in text.split(",") if part)
    return {name: int(least) - there[name] for name, least in minima if there[name] < int(least)}


def annotation(obj: Manifest, name: str) -> str | None:
    """Return an annotation."""
    value: str | None = (obj["metadata"].get("annotations") or {}).get(name)
    return value


def attempt_of(pod: Manifest) -> str | None:
    """Return the plan with which a pod was bound."""
    return annotation(pod, ATTEMPT)


def condition(obj: Manifest, kind: str) -> Manifest | None:
    """Return a condition of a status."""
    found = obj.get("status", {}).get("conditions") or []
    return next((each for each in found if each["type"] == kind), None)


def is_refused(pod: Manifest, text: str) -> bool:
    """Whether the scheduler reports that it cannot place a pod, with a message that contains `text`."""
    found = condition(pod, "PodScheduled")
    return found is not None and found["status"] == "False" and text in found["message"]


def held_jobs(pod: Manifest) -> dict[str, Manifest]:
    """Return a pod's allocations in the graph by jobid, from its record; raise InvariantError for a copied record."""
    text = annotation(pod, HELD)
    if text is None:
        return {}
    record = json.loads(text)
    if record.get("uid") != pod["metadata"]["uid"]:
        raise InvariantError(f"pod {key_of(pod)}: holds by a record of uid {record.get('uid')}")
    jobs: dict[str, Manifest] = record.get("plugins", {}).get("fluence", {}).get("jobs", {})
    return jobs


def plan_of(group: Manifest) -> Plan | None:
    """Return a PodGroup's plan; raise InvariantError if it cannot be decoded."""
    text = annotation(group, PLAN)
    if text is None:
        return None
    try:
        written = json.loads(text)
        pods = json.loads(zlib.decompress(base64.b64decode(written["pods"]))) if written.get("pods") else {}
    except (ValueError, KeyError, zlib.error) as error:
        raise InvariantError(f"PodGroup {key_of(group)}: its plan cannot be read: {error}: {text[:200]}") from error
    return Plan(written["attempt"], written.get("state", "active"), pods)


def amount(text: str) -> Decimal:
    """Return a quantity as a number."""
    digits = text.rstrip("kmMGiK")
    return Decimal(digits) * _UNITS[text[len(digits) :]]


# ---------------------------------------------------------------------- invariants


def violations(state: State) -> list[str]:
    """Return violations of invariants that always hold."""
    return [*_places(state), *_holdings(state), *_amounts(state), *_plans(state)]


def violations_at_rest(state: State) -> list[str]:
    """Return violations of further invariants that hold if nothing is in flight."""
    return [*violations(state), *_gangs(state)]


def check(plane: ControlPlane, lost_nodes: Iterable[str] = (), *, at_rest: bool = True) -> State:
    """Raise InvariantError, a line for each violation; return the checked state."""
    state = read_state(plane, lost_nodes)
    found = violations_at_rest(state) if at_rest else violations(state)
    if found:
        raise InvariantError("\n".join(found))
    return state


def _places(state: State) -> Iterator[str]:
    """Every bound pod is on a node that exists."""
    known = {node["metadata"]["name"] for node in state.nodes} | state.lost_nodes
    for pod in state.live:
        if pod["spec"]["nodeName"] not in known:
            yield f"pod {key_of(pod)}: is bound to {pod['spec']['nodeName']}, which does not exist"


def _holdings(state: State) -> Iterator[str]:
    """No core, gpu or device belongs to two live pods; each pod has them on its own node, and at most as requested.

    Live pods hold no more millicores of a node than it has.
    """
    owners: dict[tuple[str, ...], list[str]] = defaultdict(list)
    millicores = Counter[str]()
    for pod in state.live:
        try:
            jobs = held_jobs(pod)
        except (InvariantError, ValueError) as error:
            yield str(error)
            continue
        if not jobs and pod["spec"]["schedulerName"] == "fluence" and attempt_of(pod):
            yield f"pod {key_of(pod)}: was bound by fluence and holds nothing"
        for jobid, part in jobs.items():
            for device in part.get("devices", []):
                if SHARED not in device:  # several pods may have places of a shared device
                    owners["device", device].append(f"{key_of(pod)} (job {jobid})")
            if "host" not in part:
                continue
            if part["host"] != pod["spec"]["nodeName"]:
                yield f"pod {key_of(pod)}: holds {part['host']} and is bound to {pod['spec']['nodeName']}"
            millicores[part["host"]] += part.get("millicores", 0)
            for kind in ("cores", "gpus"):
                for index in part[kind]:
                    owners[kind, part["host"], str(index)].append(f"{key_of(pod)} (job {jobid})")
            for kind, indices in part.get("otherGpus", {}).items():
                for index in indices:
                    owners[kind, part["host"], str(index)].append(f"{key_of(pod)} (job {jobid})")
        yield from _devices_as_asked(pod, jobs)
    for what, pods in sorted(owners.items()):
        if len(pods) > 1:
            yield f"{' '.join(what)}: is held by {' and '.join(sorted(pods))}"
    for node in state.nodes:
        name, offered = node["metadata"]["name"], node["status"].get("allocatable", {}).get("cpu", "0")
        if millicores[name] > 1000 * amount(offered):
            yield f"node {name}: {millicores[name]}m are held of {offered}"


def _devices_as_asked(pod: Manifest, jobs: Mapping[str, Manifest]) -> Iterator[str]:
    asked = sum(amount for name, amount in _requests(pod).items() if name.startswith(DEVICE_PREFIX))
    held = sum(len(part.get("devices", [])) for part in jobs.values())
    if jobs and held != asked:
        yield f"pod {key_of(pod)}: asked for {asked} devices and holds {held}"


def _requests(pod: Manifest) -> Counter[str]:
    found: Counter[str] = Counter()
    for container in pod["spec"]["containers"]:
        for name, text in (container.get("resources", {}).get("requests") or {}).items():
            found[name] += amount(text)  # type: ignore[assignment]
    return found


def _amounts(state: State) -> Iterator[str]:
    """No node's cpu, memory, pods and devices are allocated twice."""
    used: dict[str, Counter[str]] = defaultdict(Counter)
    for pod in state.live:
        used[pod["spec"]["nodeName"]].update(_requests(pod))
        used[pod["spec"]["nodeName"]]["pods"] += 1
    for node in state.nodes:
        offered = node["status"].get("allocatable", {})
        for name, total in used[node["metadata"]["name"]].items():
            if total > amount(offered.get(name, "0")):
                yield f"node {node['metadata']['name']}: {name}: {total} are used of {offered.get(name, 0)}"


def _plans(state: State) -> Iterator[str]:
    """A pod that was bound with a plan is on the node in that plan.

    This holds only for the same attempt: groups are read before pods, and a replica that was stopped for long may plan
    a gang that has ended.
    """
    for group in state.groups:
        try:
            plan = plan_of(group)
        except InvariantError as error:
            yield str(error)
            continue
        for pod in state.members(group):
            planned = plan.pods.get(pod["metadata"]["uid"]) if plan else None
            if not planned or not plan or attempt_of(pod) != plan.attempt:
                continue
            if is_bound(pod) and planned["node"] != pod["spec"]["nodeName"]:
                yield (f"pod {key_of(pod)}: is on {pod['spec']['nodeName']}, planned was {planned['node']} "
                       f"by {plan.attempt}")  # fmt: skip


def _gangs(state: State) -> Iterator[str]:
    """A gang runs completely or not at all, and its condition agrees; pods that have ended count as running."""
    for group in state.groups:
        wanted = min_count(group)
        members = [pod for pod in state.members(group) if is_bound(pod)]
        if not wanted or not members:
            continue
        if len(members) < wanted:
            yield f"gang {key_of(group)}: {len(members)} of {wanted} are bound"
            continue
        if short := short_of(group, members):
            yield f"gang {key_of(group)}: is bound without {short} of its sub-groups"
            continue
        scheduled = condition(group, "PodGroupScheduled")
        if scheduled is None or scheduled["status"] != "True":
            yield f"gang {key_of(group)}: is bound whole, and its condition is {scheduled}"


def of_one_plan(state: State, group: Manifest) -> list[str]:
    """Return signs that a gang is mixed from several plans.

    Each bound member is where the PodGroup's plan has it. A member that was bound before the plan is marked in it.
    """
    plan = plan_of(group)
    bound = [pod for pod in state.members(group) if is_bound(pod)]
    if plan is None:
        return [f"gang {key_of(group)}: was bound without a plan"] if bound else []
    found = []
    for pod in bound:
        planned = plan.pods.get(pod["metadata"]["uid"])
        if planned is None or planned["node"] != pod["spec"]["nodeName"]:
            found.append(f"pod {key_of(pod)}: is bound, and its gang's plan {plan.attempt} knows nothing of that")
        elif attempt_of(pod) != plan.attempt and not planned.get("bound"):
            found.append(f"gang {key_of(group)}: is mixed from the plans {attempt_of(pod)} and {plan.attempt}")
    return found
