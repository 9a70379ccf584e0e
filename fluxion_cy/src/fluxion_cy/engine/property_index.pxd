# Which vertices have which properties, so that few need to be visited where a constraint names some.
from libc.stdint cimport int32_t
from libcpp.vector cimport vector

from fluxion_cy.engine.rlite cimport RLite

cdef class PropertyIndex(RLite):
    cdef vector[vector[int32_t]] having       # per property set but the empty one: the vertices that have it
    cdef vector[int32_t] chosen               # property sets, one of which the constraint asks for
    cdef bint selective                       # whether it asks for one of them
    cdef int32_t sole                         # the only child of the root that candidates leave, -1: not known
    cdef bint few_children(self, int32_t u, int32_t lo, int32_t n, bint stop, vector[int32_t]* out) noexcept nogil
