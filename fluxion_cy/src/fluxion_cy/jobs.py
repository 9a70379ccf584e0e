"""The table of jobs: which id holds which slot of the engine, and the counter for automatic ids."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from fluxion_cy.arguments import index_of
from fluxion_cy.errors import InvalidJobspec, JobExists, NoSuchJob

#: The job id of an answer that is no job (without_allocating), as in the C API.
NO_JOBID = 2**64 - 1


class Mode(StrEnum):
    """What became of a job."""

    ALLOCATED = "ALLOCATED"
    RESERVED = "RESERVED"
    CANCELED = "CANCELED"


@dataclass(slots=True)
class Job:
    """`slot` is -1 once nothing is held; `automatic`: the counter gave the id; `request`: what is asked again."""

    slot: int
    at: int
    mode: Mode
    automatic: bool = False
    request: Any = None


@dataclass(frozen=True, slots=True)
class JobInfo:
    """What `info` answers; `at` in seconds."""

    jobid: int
    mode: str
    reserved: bool
    at: int


def check_jobid(jobid: object) -> int:
    """The id itself; anything but an unsigned 64-bit number is an InvalidJobspec."""
    return index_of(jobid, "jobid", 0, 2**64 - 1)


class JobTable:
    """Jobs by id. Canceled ones are remembered until they are forgotten."""

    def __init__(self) -> None:
        self.jobs: dict[int, Job] = {}
        self.next_jobid = 1

    def choose(self, jobid: object) -> tuple[int, bool]:
        """(id, automatic) for a new job; JobExists if it is held. The counter moves in `advance`."""
        if jobid is None:
            while self.next_jobid in self.jobs:
                self.next_jobid += 1
            if self.next_jobid >= NO_JOBID:
                raise InvalidJobspec("jobid: the counter has come to its end; name an id")
            return self.next_jobid, True
        number = check_jobid(jobid)
        known = self.jobs.get(number)
        if known is not None and known.slot >= 0:
            raise JobExists(f"jobid {number}: a job with this id is known already; choose another")
        return number, False

    def advance(self, jobid: int, automatic: bool) -> None:
        """Uses up an automatic id, also for a request that found no place."""
        if automatic:
            self.next_jobid = jobid + 1

    def held(self, jobid: object) -> Job:
        """The job, if it holds something; NoSuchJob otherwise."""
        number = check_jobid(jobid)
        job = self.jobs.get(number)
        if job is None or job.slot < 0:
            raise NoSuchJob(f"jobid {number}: no such job is held")
        return job

    def known(self, jobid: object) -> Job:
        """The job, also if it is canceled; NoSuchJob if there is no record of it."""
        number = check_jobid(jobid)
        job = self.jobs.get(number)
        if job is None:
            raise NoSuchJob(f"jobid {number}: no such job is known")
        return job

    def info(self, jobid: object) -> JobInfo:
        """State of a job that is or was held."""
        job = self.known(jobid)
        return JobInfo(check_jobid(jobid), str(job.mode), job.mode is Mode.RESERVED, job.at)

    def forget(self, jobid: int) -> None:
        """Erases a record; the counter goes back if it gave this id last."""
        job = self.jobs.pop(jobid)
        if job.automatic and self.next_jobid == jobid + 1:
            self.next_jobid = jobid

    def copy(self) -> "JobTable":
        """A deep copy."""
        other = JobTable()
        other.jobs = {jobid: replace(job) for jobid, job in self.jobs.items()}
        other.next_jobid = self.next_jobid
        return other
