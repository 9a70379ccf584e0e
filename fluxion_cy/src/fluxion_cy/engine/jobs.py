"""The results of matches and the states of jobs."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any

from fluxion_cy.engine.job_table import JobTable, check_jobid


@dataclass(frozen=True, slots=True)
class Allocation:
    """The result of a match: `at` in seconds, `overhead` (the seconds that it took) and the resource set `R`.

    `R` is a mapping in the forms jgf, rv1 and rfc40, text in the others.
    """

    jobid: int
    at: int
    reserved: bool
    overhead: float
    R: Any


class MatchOp(IntEnum):
    """The operations that match, as match_op_t (resource/policies/base/match_op.h)."""

    ALLOCATE = 1
    ALLOCATE_W_SATISFIABILITY = 2
    ALLOCATE_ORELSE_RESERVE = 3
    WITHOUT_ALLOCATING = 5
    WITHOUT_ALLOCATING_FUTURE = 6


#: The operations that hold nothing.
PREVIEWS = (MatchOp.WITHOUT_ALLOCATING, MatchOp.WITHOUT_ALLOCATING_FUTURE)
#: The operations that search at one second only.
AT_ONCE = (MatchOp.ALLOCATE, MatchOp.WITHOUT_ALLOCATING)


class Mode(StrEnum):
    """The state of a job."""

    ALLOCATED = "ALLOCATED"
    RESERVED = "RESERVED"
    CANCELED = "CANCELED"


@dataclass(frozen=True, slots=True)
class JobInfo:
    """The result of `info`; `at` in seconds."""

    jobid: int
    mode: str
    reserved: bool
    at: int


def info_of(table: JobTable, jobid: object) -> JobInfo:
    """The state of a job that holds or held resources. Raises NoSuchJob without a record of it."""
    job = table.known(jobid)
    return JobInfo(check_jobid(jobid), str(job.mode), job.mode is Mode.RESERVED, job.at)
