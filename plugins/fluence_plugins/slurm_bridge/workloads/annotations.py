"""Reads and validates the annotations that configure a workload's Slurm job, `slurmjob.slinky.slurm.net/…`.

The bounds are those of slurmctld 26.05. Beyond them, slurmctld rejects the job or silently uses another number. Source:
slurm-bridge 1.2.1, internal/wellknown/annotations.go and internal/utils/slurmjobir/slurmjobir.go.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fluence_plugins.slurm_bridge.names import JOB
from fluence_plugins.slurm_bridge.slurm import gres
from fluence_plugins.slurm_bridge.slurm.gres import Gres
from fluence_plugins.slurm_bridge.workloads.workload import TranslationError, Workload
from session_scheduler.errors import shown
from session_scheduler.model.quantity import LARGEST, QuantityError, parse_quantity

MIB: Final = 2**20
MOST_TEXT: Final = 1024
"""The maximum size in bytes of a string: Slurm rejects a longer one (2012)."""
MOST_NUMBER: Final = 2**32 - 3
"""The largest 32-bit number: the numbers above it mean "no value" and "infinite"."""
MOST_CPUS: Final = 2**16 - 3
"""The largest 16-bit number, likewise."""
MOST_NODES: Final = 65533
_NUMBER = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAnnotations:
    """The values of the annotations, with the fields of `Placeholder`; None or empty for a missing annotation."""

    account: str = ""
    constraints: str = ""
    cpus_per_task: int | None = None
    exclusive: bool = True
    gres: tuple[Gres, ...] | None = None
    group_id: str = ""
    name: str = ""
    licenses: str = ""
    maximum_nodes: int | None = None
    memory_mib: int | None = None
    minimum_nodes: int | None = None
    partition: str = ""
    priority: int | None = None
    qos: str = ""
    reservation: str = ""
    time_limit_minutes: int | None = None
    user_id: str = ""
    wckey: str = ""


def read(root: Workload) -> JobAnnotations:
    """Read the root's annotations. Raises TranslationError, which names the object, the annotation and the remedy.

    Spaces around a string are ignored; an empty string counts as a missing annotation.
    """
    values: dict[str, Any] = {}
    for annotation, (field, reader) in _READERS.items():
        workload, text = _text(root, JOB + annotation)
        if not text:
            continue
        try:
            values[field] = reader(text)
        except ValueError as error:
            raise TranslationError(f"{workload}: metadata.annotations[{JOB + annotation}]: {error}") from None
    return JobAnnotations(**values)


def _text(root: Workload, annotation: str) -> tuple[Workload, str]:
    """The annotation's text, and the highest object that has it."""
    for workload in (*root.above, root):
        if text := workload.metadata.annotations.get(annotation, "").strip():
            return workload, text
    return root, ""


# ------------------------------------------------ readers: raise ValueError with the problem and the remedy


def _plain(text: str) -> str:
    if not text.isprintable():
        raise ValueError(f"{shown(text)} has characters that are not printable; remove them")
    if len(text.encode()) > MOST_TEXT:
        raise ValueError(f"{shown(text)} has more than {MOST_TEXT} bytes; shorten it")
    return text


def _number(least: int, most: int) -> Callable[[str], int]:
    def read_number(text: str) -> int:
        if _NUMBER.fullmatch(text) is None or not least <= int(text) <= most:
            raise ValueError(f"expected a whole number from {least} to {most}, got {shown(text)}; correct or remove it")
        return int(text)

    return read_number


def _quantity(text: str, example: str) -> int:
    try:
        amount = parse_quantity(text)
    except QuantityError as error:
        raise ValueError(str(error)) from None
    if not 0 <= amount < LARGEST:
        raise ValueError(
            f"{shown(text)} is {'negative' if amount < 0 else 'too large'}; write an amount such as {example}"
        )
    return amount


def _cpus(text: str) -> int:
    cpus = _quantity(text, "2")
    if not 1 <= cpus <= MOST_CPUS:
        raise ValueError(f"expected 1 to {MOST_CPUS} CPUs, got {shown(text)}; correct or remove it")
    return cpus


def _memory(text: str) -> int:
    return -(-_quantity(text, "8Gi") // MIB)


def _exclusive(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"expected true or false, got {shown(text)}; correct or remove it")
    return text.lower() == "true"


def _identity(text: str) -> str:
    """A user or group, by name or number. Slurm rejects numbers that overflow."""
    if text.startswith("-") or any(character.isspace() for character in text):
        raise ValueError(
            f"expected a name, or a number from 0 to {MOST_NUMBER}, got {shown(text)}; correct or remove it"
        )
    return str(_number(0, MOST_NUMBER)(text)) if text.isascii() and text.isdigit() else _plain(text)


def _gres(text: str) -> tuple[Gres, ...]:
    return gres.parse(_plain(text))


_READERS: Final[Mapping[str, tuple[str, Callable[[str], object]]]] = {
    "account": ("account", _plain),
    "constraints": ("constraints", _plain),
    "cpu-per-task": ("cpus_per_task", _cpus),
    "exclusive": ("exclusive", _exclusive),
    "gres": ("gres", _gres),
    "group-id": ("group_id", _identity),
    "job-name": ("name", _plain),
    "licenses": ("licenses", _plain),
    "max-nodes": ("maximum_nodes", _number(1, MOST_NODES)),
    "mem-per-node": ("memory_mib", _memory),
    "min-nodes": ("minimum_nodes", _number(1, MOST_NODES)),
    "partition": ("partition", _plain),
    "priority": ("priority", _number(0, MOST_NUMBER)),
    "qos": ("qos", _plain),
    "reservation": ("reservation", _plain),
    "timelimit": ("time_limit_minutes", _number(1, MOST_NUMBER)),
    "user-id": ("user_id", _identity),
    "wckey": ("wckey", _plain),
}
ANNOTATIONS: Final = tuple(JOB + name for name in _READERS)
"""The names of all annotations."""
