# The engine's slot for each job id.
from libc.stdint cimport int32_t, int64_t

cdef class Job:
    cdef public int32_t slot      # -1 once it holds nothing
    cdef public int64_t at
    cdef public object mode
    cdef public bint automatic    # the id came from the counter
    cdef public object request    # for replanning, or None

cdef class JobTable:
    cdef public dict jobs
    cdef public object next_jobid
    cdef public int64_t latest    # the latest `now` of all calls
    cdef object _next(self)
