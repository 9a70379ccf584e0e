"""What is said of jobs: what a match gave, and what became of one."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any

from fluxion_cy.engine.job_table import JobTable, check_jobid


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a match gave: `at` in seconds, `overhead` the seconds it took, `R` the resource set.

    `R` is a mapping in the jgf, rv1 and rfc40 forms, text in the others.
    """

    jobid: int
    at: int
    reserved: bool
    overhead: float
    R: Any


class MatchOp(IntEnum):
    """The operations that match: match_op_t (resource/policies/base/match_op.h)."""

    ALLOCATE = 1
    ALLOCATE_W_SATISFIABILITY = 2
    ALLOCATE_ORELSE_RESERVE = 3
    WITHOUT_ALLOCATING = 5
    WITHOUT_ALLOCATING_FUTURE = 6


#: Those that hold nothing.
PREVIEWS = (MatchOp.WITHOUT_ALLOCATING, MatchOp.WITHOUT_ALLOCATING_FUTURE)
#: Those that ask about one second only.
AT_ONCE = (MatchOp.ALLOCATE, MatchOp.WITHOUT_ALLOCATING)


class Mode(StrEnum):
    """What became of a job."""

    ALLOCATED = "ALLOCATED"
    RESERVED = "RESERVED"
    CANCELED = "CANCELED"


@dataclass(frozen=True, slots=True)
class JobInfo:
    """What `info` answers; `at` in seconds."""

    jobid: int
    mode: str
    reserved: bool
    at: int


def info_of(table: JobTable, jobid: object) -> JobInfo:
    """State of a job that is or was held; NoSuchJob if there is no record of it."""
    job = table.known(jobid)
    return JobInfo(check_jobid(jobid), str(job.mode), job.mode is Mode.RESERVED, job.at)
