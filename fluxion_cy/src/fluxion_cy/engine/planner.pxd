# Allocations over time: spans by vertex, and time profiles of the used amounts below a vertex.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libcpp.vector cimport vector

from fluxion_cy.engine.store cimport Store

cdef struct Entry:
    int32_t vertex
    uint8_t exclusive   # whether it is held exclusively; entries of ancestors are not exclusive
    int64_t units

cdef struct Span:
    int64_t start
    int64_t end
    int32_t slot

cdef struct Weighed:
    int32_t inner
    uint64_t before
    uint64_t after

cdef class Planner(Store):
    cdef public int32_t ncols            # pruned types
    cdef int32_t width                   # numbers per row of a profile
    cdef vector[int32_t] col_type        # column -> type
    cdef vector[int32_t] type_col        # type -> column, -1: not counted
    cdef vector[int32_t] weigh_col       # type of a vertex -> column that orders it among its siblings, -1: none
    cdef public object filters           # prune_filters: [(anchor type or None, type)]
    cdef vector[vector[Span]] own        # per vertex: exclusive spans
    cdef vector[vector[int64_t]] times   # per profile: the seconds at which the amounts change
    cdef vector[vector[int64_t]] rows    # per profile: [number of spans that begin or end here, holders, used per column]
    cdef vector[vector[int64_t]] totals  # per profile: amount per column
    cdef vector[vector[Entry]] held      # per job slot, children before parents
    cdef vector[vector[Weighed]] weighed
    cdef vector[int64_t] starts
    cdef vector[int64_t] ends
    cdef vector[int32_t] free_slots
    cdef vector[int32_t] row_of          # scratch: vertex -> row of sums while a job is applied
    cdef vector[int64_t] sums
    cdef size_t row_at(self, int32_t p, int64_t t) noexcept nogil
    cdef int64_t used_max(self, int32_t p, int32_t col, int64_t at, int64_t end) noexcept nogil
    cdef bint fits(self, int32_t v, const int64_t* need, int64_t at, int64_t end, bint ever) noexcept nogil
    cdef bint busy(self, int32_t v, int64_t at, int64_t end) noexcept nogil
    cdef int64_t avail(self, int32_t v, int64_t at, int64_t end) noexcept nogil
    cdef size_t point(self, int32_t p, int64_t t) noexcept nogil
    cdef void drop_point(self, int32_t p, int64_t t) noexcept nogil
    cdef void shift(self, int32_t p, int64_t start, int64_t end, const int64_t* amounts, int64_t sign) noexcept nogil
    cdef void _hold_whole(self, int32_t v) noexcept
    cdef void apply(self, int32_t slot, int64_t sign) noexcept nogil
    cdef void weigh(self, int32_t slot, int64_t now) noexcept nogil
    cdef void reweigh(self, int32_t inner, int32_t v, uint64_t weight) noexcept nogil
    cdef int32_t take_slot(self, int64_t start, int64_t end) noexcept nogil
    cdef _count_below(self)
    cdef copy_into(self, Planner other)
