# The checks of a single vertex: its constraint, and the types below it.
from libc.stdint cimport int32_t, int64_t, uint8_t
from libcpp.pair cimport pair
from libcpp.vector cimport vector

from fluxion_cy.engine.property_index cimport PropertyIndex

cdef struct Rule:
    int32_t kind
    int32_t first
    int32_t count

cdef class Admit(PropertyIndex):
    cdef vector[Rule] rules
    cdef vector[int32_t] links
    cdef const uint8_t* prop_ok               # per property rule and property set: whether the rule holds
    cdef vector[int32_t] hosts
    cdef vector[pair[int64_t, int64_t]] rank_spans
    cdef bint constrained
    cdef readonly bint node_only
    cdef vector[uint8_t] nodes_below
    cdef vector[uint8_t] within_nodes         # per type: whether a vertex of this type is below a node
    cdef bint rule_holds(self, int32_t i, int32_t v) noexcept nogil
    cdef bint anchors(self, int32_t u, int32_t slot) noexcept nogil
    cdef bint spans_nodes(self, int32_t slot) noexcept nogil
    cdef bint admitted(self, int32_t u) noexcept nogil
    cdef bint barred(self, int32_t u) noexcept nogil
    cdef int64_t free_units(self, int32_t u) noexcept nogil
    cdef bint pruned(self, int32_t u, int32_t lo, int32_t n, bint x) noexcept nogil
    cdef bint hopeless(self, int32_t u, int32_t lo, int32_t n) noexcept nogil
