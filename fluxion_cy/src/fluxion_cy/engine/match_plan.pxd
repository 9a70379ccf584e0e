# A request as tables that the engine reads without the GIL.
from libc.stdint cimport int32_t, int64_t
from libcpp.pair cimport pair
from libcpp.vector cimport vector

from fluxion_cy.engine.pick cimport Request
from fluxion_cy.engine.admit cimport Rule

cdef class Form:
    cdef vector[Request] requests
    cdef vector[vector[int64_t]] needs
    cdef vector[int64_t] top_need
    cdef int32_t tops
    cdef int32_t top_slots
    cdef vector[int32_t] choice
    cdef vector[vector[vector[pair[int32_t, int32_t]]]] choices

cdef class Terms:
    cdef vector[Rule] rules
    cdef vector[int32_t] links
    cdef bytearray prop_ok
    cdef vector[int32_t] hosts
    cdef vector[pair[int64_t, int64_t]] rank_spans
    cdef bint selective
    cdef vector[int32_t] chosen

cdef class MatchPlan:
    cdef Form form
    cdef Terms terms
    cdef int64_t duration
    cdef tuple tables
