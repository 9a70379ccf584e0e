# cython: language_level=3
"""The table of jobs: which id holds which slot of the engine, and the counter for automatic ids."""
from libc.stdint cimport int32_t, int64_t

from fluxion_cy.base.arguments import index_of
from fluxion_cy.errors import InvalidJobspec, JobExists, NoSuchJob

#: The job id of an answer that is no job (without_allocating), as in the C API.
NO_JOBID = 2**64 - 1


def check_jobid(jobid):
    """The id itself; anything but an unsigned 64-bit number is an InvalidJobspec."""
    return index_of(jobid, "jobid", 0, 2**64 - 1)


cdef class Job:
    """`slot` is -1 once nothing is held; `automatic`: the counter gave the id; `request`: what is asked again."""

    def __init__(self, int32_t slot, int64_t at, mode, bint automatic=False, request=None):
        self.slot, self.at, self.mode, self.automatic, self.request = slot, at, mode, automatic, request


cdef class JobTable:
    """Jobs by id. Canceled ones are remembered until they are forgotten."""

    def __init__(self):
        self.jobs, self.next_jobid, self.latest = {}, 1, 0

    cdef object _next(self):
        """The counter, moved on to an id that nothing has."""
        while self.next_jobid in self.jobs:
            self.next_jobid += 1
        if self.next_jobid >= NO_JOBID:
            raise InvalidJobspec("jobid: the counter has come to its end; name an id")
        return self.next_jobid

    def choose(self, jobid):
        """(id, automatic) for a new job; JobExists if it is held. The counter moves in `advance`."""
        if jobid is None:
            return self._next(), True
        number = check_jobid(jobid)
        known = self.jobs.get(number)
        if known is not None and known.slot >= 0:
            raise JobExists(f"jobid {number}: a job with this id is known already; choose another")
        return number, False

    def advance(self, jobid, bint automatic):
        """Uses up an automatic id, also for a request that found no place."""
        if automatic:
            self.next_jobid = jobid + 1

    def held(self, jobid):
        """The job, if it holds something; NoSuchJob otherwise."""
        number = check_jobid(jobid)
        job = self.jobs.get(number)
        if job is None or job.slot < 0:
            raise NoSuchJob(f"jobid {number}: no such job is held")
        return job

    def known(self, jobid):
        """The job, also if it is canceled; NoSuchJob if there is no record of it."""
        number = check_jobid(jobid)
        job = self.jobs.get(number)
        if job is None:
            raise NoSuchJob(f"jobid {number}: no such job is known")
        return job

    def forget(self, jobid):
        """Erases a record; the counter goes back if it gave this id last."""
        job = self.jobs.pop(jobid)
        if job.automatic and self.next_jobid == jobid + 1:
            self.next_jobid = jobid

    def copy(self):
        """A deep copy."""
        cdef JobTable other = JobTable()
        for number, job in self.jobs.items():
            other.jobs[number] = Job(job.slot, job.at, job.mode, job.automatic, job.request)
        other.next_jobid, other.latest = self.next_jobid, self.latest
        return other
