# The walk, its policy, and its tables of the graph.
from libc.stdint cimport int32_t, int64_t, uint8_t
from libcpp.pair cimport pair
from libcpp.vector cimport vector

from fluxion_cy.engine.admit cimport Admit
from fluxion_cy.engine.pick cimport Entry, Group

cdef enum:
    ENDLESS = 4294967295  # an unlimited supply

cdef class Traverser(Admit):
    cdef int32_t top_slots
    cdef vector[int64_t] top_need             # the amount of each pruned type that the whole request needs
    cdef vector[int64_t] perf_class           # per property set
    cdef int32_t node_now
    cdef int64_t node_free_now
    cdef bint node_centric
    cdef bint stop
    cdef vector[uint8_t] policy_whole         # per type: whether the policy makes it exclusive with its whole subtree
    cdef bint gather
    cdef int64_t factor_sum
    cdef vector[vector[int32_t]] by_id        # per inner vertex: children in the order of their scores
    cdef vector[vector[int32_t]] inner_kinds  # per inner vertex: types of children that have children
    cdef vector[Entry] merged
    cdef bint walk(self, int32_t u, int32_t lo, int32_t n, int mode, bint x_in) noexcept nogil
    cdef bint satisfied(self, int32_t u, int32_t e, int32_t slot, bint x, bint anchor) noexcept nogil
    cdef bint slots_in_turn(self, int32_t u, int32_t e) noexcept nogil
    cdef bint explore(self, int32_t u, int32_t lo, int32_t n, int mode, bint x, int64_t times) noexcept nogil
    cdef bint explore_all(self, int32_t inner, int32_t lo, int32_t n, int mode, bint x) noexcept nogil
    cdef bint explore_some(self, int32_t u, int32_t lo, int32_t n, int mode, bint x, int64_t times) noexcept nogil
    cdef double liking(self, int32_t v) noexcept nogil
    cdef bint passes(self, int32_t inner, int32_t lo, int32_t n, int mode) noexcept nogil
    cdef bint unranked(self, int32_t inner) noexcept nogil
    cdef bint fill_slots(self, int32_t u, int32_t slot, int mode) noexcept nogil
    cdef bint fill_mixed(self, int32_t u, int32_t slot, int64_t filled) noexcept nogil
    cdef bint lead(self, int32_t u, int32_t slot, int64_t filled, int64_t* counts, size_t* at) noexcept nogil
    cdef void add_slot(self, int32_t u, int32_t slot, Group* group, int64_t filled) noexcept nogil
    cdef int64_t free_below(self, int32_t u) noexcept nogil
    cdef bint one_pass(self, int32_t lo, int32_t n) noexcept nogil
    cdef bint run(self) noexcept nogil
    cdef bint run_within_caps(self) noexcept nogil
    cdef bint attempt(self) noexcept nogil
