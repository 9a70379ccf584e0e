# Which id holds which slot of the engine.
from libc.stdint cimport int32_t, int64_t

cdef class Job:
    cdef public int32_t slot      # -1 once nothing is held
    cdef public int64_t at
    cdef public object mode
    cdef public bint automatic    # the counter gave the id
    cdef public object request    # what is asked again, or None

cdef class JobTable:
    cdef public dict jobs
    cdef public object next_jobid
    cdef public int64_t latest    # the latest second that any call has named
    cdef object _next(self)
