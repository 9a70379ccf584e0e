"""Generic resources (GRES, mostly GPUs) in Slurm's format: `gres/name:type=count`, separated by commas.

Slurm distinguishes names and types by case, and rejects a colon before the count unless the text starts with `gres`
(2115). So this module rewrites `GPU:V100:2` and the other formats of Slurm's commands. If the nodes have a name or type
that differs only in case, this module uses the nodes' spelling.
Source: slurmctld 26.05 itself; slurm-bridge 1.2.1, internal/utils/slurmjobir/slurmjobir.go for resources of pods.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from session_scheduler.errors import shown
from session_scheduler.model.quantity import LARGEST

DEFAULT_RESOURCES: Final[Mapping[str, str]] = {"nvidia.com/gpu": "gpu", "amd.com/gpu": "gpu"}
"""The extended resources of pods, with the GRES of each in Slurm: `name` or `name:type`."""
DEVICE_CLASS: Final = "deviceclass.resource.kubernetes.io/"
"""The prefix of an extended resource that requests devices of a DeviceClass: GPUs of that type."""
CPU_CLASS: Final = DEVICE_CLASS + "dra.cpu"
"""The extended resource for the DeviceClass of CPUs."""

Known = Collection[tuple[str, str]]
"""The names and types that the nodes have; the type may be empty."""

_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}")
_COUNT = re.compile(r"([0-9]{1,15})([kKmMgGtTpP]?)")
_PREFIX = re.compile(r"gres[/:]", re.IGNORECASE)
_REMEDY = "write name:type:count or gres/name:type=count, separated by commas, such as gres/gpu:v100=2"


@dataclass(frozen=True, slots=True)
class Gres:
    """A resource, and how much of it a node must have."""

    name: str
    type: str = ""
    count: str = "1"
    """Including its suffix K, M, G, T or P (powers of 1024), if any."""

    def __str__(self) -> str:
        return f"gres/{self.name}:{self.type}={self.count}" if self.type else f"gres/{self.name}={self.count}"


def parse(text: str) -> tuple[Gres, ...]:
    """Parse a list of GRES; empty for `none`. Raises ValueError with the problem and the remedy."""
    if text.lower() == "none":
        return ()
    found = tuple(_one(part.strip()) for part in text.split(",") if part.strip())
    if not found:
        raise ValueError(f"{shown(text)} names no resource; {_REMEDY}, or none")
    _check(found)
    return found


def _one(text: str) -> Gres:
    prefix = _PREFIX.match(text)
    words, given, count = text[prefix.end() if prefix else 0 :].partition("=")
    fields = words.split(":")
    if not given:
        count = fields.pop() if len(fields) > 1 and _COUNT.fullmatch(fields[-1]) else "1"
    number = _COUNT.fullmatch(count)
    if number is None or len(fields) > 2 or not all(_WORD.fullmatch(field) for field in fields):
        raise ValueError(f"expected a generic resource, got {shown(text)}; {_REMEDY}")
    return Gres(fields[0], fields[1] if len(fields) > 1 else "", f"{int(number[1])}{number[2].upper()}")


def _check(found: Sequence[Gres]) -> None:
    """Reject duplicates (Slurm would use the last one) and a name both with and without a type (2119)."""
    kinds = [(one.name.lower(), one.type.lower()) for one in found]
    for name, type_ in kinds:
        if kinds.count((name, type_)) > 1:
            raise ValueError(f"{name}{':' if type_ else ''}{type_} is requested twice; name each resource once")
        if type_ and (name, "") in kinds:
            raise ValueError(f"{name} is requested with and without a type, which Slurm rejects; always name the type")


def to_text(found: Iterable[Gres], known: Known = ()) -> str:
    """Format GRES for Slurm. A name or type that differs from the nodes' only in case is replaced by theirs.

    If the nodes do not have it, it stays as it is; if the name contains upper case, both become lower case.
    """
    return ",".join(str(_in_case(one, known)) for one in found)


def _in_case(gres: Gres, known: Known) -> Gres:
    lower = gres.name != gres.name.lower()
    name = _matching(gres.name, {name for name, _ in known}, lower=lower)
    types = {type_ for known_name, type_ in known if known_name == name}
    return Gres(name, _matching(gres.type, types, lower=lower), gres.count)


def _matching(word: str, known: Collection[str], *, lower: bool) -> str:
    if word in known:
        return word
    return min((one for one in known if one.lower() == word.lower()), default=word.lower() if lower else word)


def known_of(nodes: Iterable[str]) -> frozenset[tuple[str, str]]:
    """The names and types in the nodes' GRES: `gpu:v100:2(S:0-1),shard:4`. Invalid parts are skipped."""
    found = set()
    for text in nodes:
        for part in re.sub(r"\([^)]*\)", "", text).split(","):
            try:
                gres = _one(part.strip())
            except ValueError:
                continue
            found.add((gres.name, gres.type))
    return frozenset(found)


# ------------------------------------------------------------------ of pods


def of_pods(pods: Iterable[Mapping[str, int]], resources: Mapping[str, str] = DEFAULT_RESOURCES) -> tuple[Gres, ...]:
    """The GRES of a job's nodes: of each GRES, the most that one pod needs. Each item of `pods` maps resources to
    amounts.

    Raises ValueError if Slurm would reject the job.
    """
    most: dict[tuple[str, str], int] = {}
    for needs in pods:
        for key, amount in _of_pod(needs, resources).items():
            most[key] = max(most.get(key, 0), amount)
    found = tuple(Gres(name, type_, str(amount)) for (name, type_), amount in sorted(most.items()))
    _check(found)
    return found


def _of_pod(needs: Mapping[str, int], resources: Mapping[str, str]) -> dict[tuple[str, str], int]:
    """Add up the resources that are one GRES in Slurm."""
    total: dict[tuple[str, str], int] = {}
    for resource, amount in needs.items():
        name = resources.get(resource, "")
        if not name and resource.startswith(DEVICE_CLASS) and resource != CPU_CLASS:
            name = f"gpu:{resource.removeprefix(DEVICE_CLASS)}"
        if name and amount > 0:
            gres, _, type_ = name.partition(":")
            total[gres, type_] = min(LARGEST, total.get((gres, type_), 0) + amount)
    return total
