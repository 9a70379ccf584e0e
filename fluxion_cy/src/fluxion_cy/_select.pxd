# What Python asks of the engine.
from libc.stdint cimport int32_t, int64_t
from libcpp.vector cimport vector

from fluxion_cy._walk cimport Walk

cdef class Select(Walk):
    cdef object _prop_ok                      # keeps them
    cdef public bint deep
    cdef object _by_rank
    cdef int64_t _ranks_version
    cdef void tally(self, int32_t v, int64_t start, int64_t end, bint up, vector[int64_t]& parts,
                    vector[int32_t]& index, vector[int64_t]& amounts) noexcept nogil
    cdef bint up_to_root(self, int32_t v) noexcept nogil
    cdef bint open_to_root(self, int32_t v, int64_t start, int64_t end) noexcept nogil
    cdef bint chosen_to_root(self, int32_t v) noexcept nogil
    cdef bint fit_to_root(self, int32_t v) noexcept nogil
