"""What is said of jobs: what a match gave, and what became of one."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fluxion_cy._jobs import NO_JOBID, Job, JobTable, check_jobid

__all__ = ["NO_JOBID", "Allocation", "Job", "JobInfo", "JobTable", "Mode", "check_jobid", "info_of"]


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
