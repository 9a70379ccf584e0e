# Slots per rank: those that groups use, and the used part of the candidates' caps.
from libc.stdint cimport int32_t, int64_t, uint8_t
from libcpp.vector cimport vector

from fluxion_cy.engine.planner cimport Planner

cdef struct Request:
    int32_t type        # interned type, -1 for a slot
    int32_t first       # children: requests[first : first + count]
    int32_t count
    int32_t slots       # how many of the children are slots
    int32_t last_slot   # the last of them, -1: none
    int32_t oper        # '+', '*' or '^'
    int64_t low
    int64_t high
    int64_t operand
    int64_t most        # the count from an endless supply
    uint8_t slot
    uint8_t exclusive   # requested
    uint8_t shared      # has exclusive: false

cdef struct Use:
    int32_t rank
    int32_t level       # how many slots enclose these slots; the caps apply to each level separately
    int64_t slots

cdef struct Tally:
    int64_t scope
    Use use

cdef class Caps(Planner):
    cdef vector[Request] requests
    cdef int32_t tops
    cdef vector[int64_t] candidates           # per rank: the number of slots allowed, or only whether it is a candidate
    cdef bint capped
    cdef bint thrifty                         # each range of counts takes its minimum
    cdef int32_t short_rank                   # the first rank whose cap excluded something in this match, -1: none
    cdef vector[uint8_t] counted              # per request: whether it is a slot or contains one
    cdef vector[int32_t] level                # per request: the number of slots that enclose it
    cdef vector[int32_t] above                # per request: index of its parent in `used`, 0: the whole match
    cdef bint stretches                       # whether taking less, or searching further, may help if caps are too low
    cdef vector[int64_t] used                 # scopes of the picked vertices: for the match, then below each request
    cdef vector[int64_t] offered              # per request: scope of the vertices found
    cdef vector[vector[Use]] picked           # the same as `used`, pick by pick
    cdef vector[Use] uses                     # the slots by rank of the groups of this match
    cdef vector[Tally] tallies                # open addressing; the places of earlier matches are free
    cdef size_t tallied
    cdef int64_t scope                        # the latest scope
    cdef int64_t oldest                       # the first scope of this match
    cdef void prepare_caps(self) noexcept nogil
    cdef void forget_uses(self) noexcept nogil
    cdef int64_t next_scope(self) noexcept nogil
    cdef size_t place_of(self, int64_t scope, int32_t rank, int32_t level) noexcept nogil
    cdef int64_t slots_in(self, int64_t scope, int32_t rank, int32_t level) noexcept nogil
    cdef int64_t add(self, int64_t scope, Use use) noexcept nogil
    cdef void make_room(self) noexcept nogil
    cdef bint has_room(self, int64_t before, int64_t scope, int32_t rank, int32_t level) noexcept nogil
    cdef bint fits_caps(self, int64_t before, int64_t scope, int32_t first, int32_t count) noexcept nogil
    cdef void give_back(self, int64_t scope, int32_t first, int32_t count) noexcept nogil
    cdef void open_below(self, int32_t e) noexcept nogil
    cdef void note_picked(self, int32_t e, int32_t first, int32_t count) noexcept nogil
    cdef int32_t close_below(self, int32_t e) noexcept nogil
    cdef int32_t slot_rank(self, int32_t u, int32_t piece) noexcept nogil
