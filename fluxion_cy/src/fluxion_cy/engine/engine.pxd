# The engine's interface to Python.
from libc.stdint cimport int32_t, int64_t
from libcpp.vector cimport vector

from fluxion_cy.engine.match_plan cimport Form, Terms
from fluxion_cy.engine.traverser cimport Traverser

cdef enum:
    IN_VAIN = -1      # no match
    UNSURE = -2       # the general path decides

cdef class Engine(Traverser):
    cdef object _prop_ok                      # owns the bytes to which `prop_ok` points
    cdef public bint deep
    cdef object _by_rank
    cdef int64_t _ranks_version
    cdef object _soles
    cdef int64_t _soles_version
    cdef int32_t _sole_of(self, int64_t rank)
    cdef void _ask(self, Form form) noexcept nogil
    cdef void _constrain(self, Terms terms)
    cdef void _at(self, int64_t at, int64_t end, bint ever, bint gather)
    cdef int32_t place_now(self, Form form, Terms terms, int64_t now, int64_t duration, int64_t longest)
    cdef int32_t hold_result(self, int64_t start, int64_t end, int64_t now) noexcept nogil
    cdef void tally(self, int32_t v, int64_t start, int64_t end, bint up, vector[int64_t]& parts,
                    vector[int32_t]& index, vector[int64_t]& amounts) noexcept nogil
    cdef bint all_of_rank(self, int32_t v, int32_t rank) noexcept nogil
    cdef bint up_to_root(self, int32_t v) noexcept nogil
    cdef bint open_to_root(self, int32_t v, int64_t start, int64_t end) noexcept nogil
    cdef bint chosen_to_root(self, int32_t v) noexcept nogil
    cdef bint fit_to_root(self, int32_t v) noexcept nogil
