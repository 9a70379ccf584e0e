# The vertices of each property set, so that a match with a constraint on properties visits few vertices.
from libc.stdint cimport int32_t
from libcpp.vector cimport vector

from fluxion_cy.engine.rlite cimport RLite

cdef class PropertyIndex(RLite):
    cdef vector[vector[int32_t]] having       # per property set except the empty one: the vertices that have it
    cdef vector[int32_t] chosen               # if `selective`: the constraint requires one of these property sets
    cdef bint selective                       # whether `chosen` is set
    cdef int32_t sole                         # the only child of the root with candidates, -1: not known
    cdef bint few_children(self, int32_t u, int32_t lo, int32_t n, bint stop, vector[int32_t]* out) noexcept nogil
