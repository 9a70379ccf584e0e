# cython: language_level=3
"""The table of jobs: the engine's slot for each job id, and the counter for automatic ids."""
from libc.stdint cimport int32_t, int64_t

from fluxion_cy.base.arguments import index_of
from fluxion_cy.errors import InvalidJobspec, JobExists, NoSuchJob

#: The job id of a preview (without_allocating), as in the C API.
NO_JOBID = 2**64 - 1


def check_jobid(jobid):
    """Returns the id. Raises InvalidJobspec unless it is an unsigned 64-bit number."""
    return index_of(jobid, "jobid", 0, 2**64 - 1)


cdef class Job:
    """A job. `slot` is -1 once it holds nothing. `automatic`: its id came from the counter. `request`: used to replan it."""

    def __init__(self, int32_t slot, int64_t at, mode, bint automatic=False, request=None):
        self.slot, self.at, self.mode, self.automatic, self.request = slot, at, mode, automatic, request


cdef class JobTable:
    """Jobs by id, including canceled ones until `forget` erases them."""

    def __init__(self):
        self.jobs, self.next_jobid, self.latest = {}, 1, 0

    cdef object _next(self):
        """Advances the counter to an id without a record, and returns this id."""
        while self.next_jobid in self.jobs:
            self.next_jobid += 1
        if self.next_jobid >= NO_JOBID:
            raise InvalidJobspec("jobid: the counter for automatic ids is exhausted; pass an id")
        return self.next_jobid

    def choose(self, jobid):
        """The id of a new job, and whether it is automatic. Raises JobExists. `advance` then uses up the id."""
        if jobid is None:
            return self._next(), True
        number = check_jobid(jobid)
        known = self.jobs.get(number)
        if known is not None and known.slot >= 0:
            raise JobExists(f"jobid {number}: a job with this id already exists; choose another")
        return number, False

    def advance(self, jobid, bint automatic):
        """Uses up an automatic id, even if the request had no match."""
        if automatic:
            self.next_jobid = jobid + 1

    def held(self, jobid):
        """The job, if it holds something. Raises NoSuchJob otherwise."""
        number = check_jobid(jobid)
        job = self.jobs.get(number)
        if job is None or job.slot < 0:
            raise NoSuchJob(f"jobid {number}: no job with this id holds anything")
        return job

    def known(self, jobid):
        """The job, canceled or not. Raises NoSuchJob if it has no record."""
        number = check_jobid(jobid)
        job = self.jobs.get(number)
        if job is None:
            raise NoSuchJob(f"jobid {number}: no such job")
        return job

    def forget(self, jobid):
        """Erases a record. If this id was the last one from the counter, the counter will return it again."""
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
