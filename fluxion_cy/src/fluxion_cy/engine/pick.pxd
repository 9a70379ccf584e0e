# One match: the requests and the groups found for them, all as C++ vectors.
from libc.stdint cimport int32_t, int64_t, uint8_t
from libcpp.map cimport map as cppmap
from libcpp.pair cimport pair
from libcpp.vector cimport vector

from fluxion_cy.engine.caps cimport Caps, Request
from fluxion_cy.engine.planner cimport Entry

cdef struct Piece:
    int32_t vertex
    int64_t units

cdef struct Group:
    int64_t score
    int64_t count
    int64_t left        # units of a pool not yet given to a slot
    int32_t vertex      # the vertex, or a slot's first piece
    int32_t first       # a slot's pieces: pieces[first : first + pieces]
    int32_t pieces
    int32_t first_use   # with caps, its slots by rank: uses[first_use : first_use + uses]
    int32_t uses
    int32_t rank
    int32_t node        # natural order of its node (policy pack)
    int64_t node_free   # the free amount of its node
    uint8_t exclusive

# ((-preference, free on its node), ((order of its node, signed score), (natural order, index of the group))):
# in ascending order, the best is first. The two values of nodes are 0 except with the policy pack.
ctypedef pair[pair[double, int64_t], pair[pair[int64_t, int64_t], pair[int64_t, int64_t]]] RankedGroup

cdef enum Ordering:
    BY_ID = 0
    BY_CLASS = 1     # property perf_class, best class first
    BY_RUN = 2       # at the top level, by the first id of a run of consecutive ids
    BY_FILL = 3      # the fullest node first

cdef enum:
    NO_PROBLEM = 0
    SIBLINGS = 1             # sibling entries fit the same vertex
    SHARED_UNDER_SLOT = 2    # exclusive: false below a slot
    NOTHING_EXCLUSIVE = 3
    TOO_MANY_SLOTS = 4
    NOT_WHOLE = 5            # a job holds a vertex below an exclusive one
    UNSPELLED = 6            # a level between a vertex and its slots is left out

cdef enum:
    BELOW = 0                # groups are ranked for a request below a vertex
    IN_SLOT = 1              # groups are ranked to fill slots at a vertex
    AT_TOP = 2               # groups are ranked at the top level of the jobspec

cdef enum:
    MAX_SIBLINGS = 64

cdef class Pick(Caps):
    cdef vector[int32_t] choice               # per request: index of its alternatives in `choices`, -1: none
    cdef vector[vector[vector[pair[int32_t, int32_t]]]] choices   # per alternative: (child to search, request that counts)
    cdef cppmap[vector[int64_t], pair[int64_t, int32_t]] mixes    # amounts left -> (slots from them, the next alternative)
    cdef vector[vector[int64_t]] needs        # per request: the amount of each pruned type that one unit needs below it
    cdef int64_t sign
    cdef int ordering
    cdef vector[int64_t] run_scores           # of all groups at the top level, ascending,
    cdef vector[int64_t] run_starts           # and the first score of each one's run
    cdef vector[uint8_t] whole                # per type: whether it is exclusive with its whole subtree in this match
    cdef int64_t at
    cdef int64_t end
    cdef bint ever
    cdef int problem
    cdef int32_t problem_vertex
    cdef vector[double] preference
    cdef vector[vector[Group]] groups
    cdef vector[int64_t] found
    cdef vector[Piece] pieces
    cdef vector[RankedGroup] keys
    cdef vector[Group] sorted_groups
    cdef vector[uint8_t] ascending            # per inner vertex: whether its children are in the order of their numbers
    cdef vector[int32_t] marks                # the vertices marked in this pass
    cdef vector[int32_t] mark_pass
    cdef vector[int64_t] mark_units
    cdef vector[uint8_t] mark_exclusive
    cdef vector[int32_t] taken
    cdef vector[int64_t] taken_units
    cdef vector[int32_t] touched
    cdef vector[int32_t] skipped              # used in this match, although the jobspec leaves out a level above it
    cdef bint spelled                         # a match that has only skipped vertices is an error
    cdef int32_t match_no
    cdef int32_t pass_no
    cdef vector[Entry] result
    cdef bint in_order(self, int32_t e, int64_t sign) noexcept nogil
    cdef bint fill_one(self, int32_t slot, int64_t* counts, size_t* at, Group* out) noexcept nogil
    cdef int64_t qualified(self, int32_t e, int where) noexcept nogil
    cdef int64_t qualified_within_caps(self, int32_t e, int where) noexcept nogil
    cdef int64_t calc(self, int32_t e, int64_t supply) noexcept nogil
    cdef void rank_groups(self, int32_t e, int64_t wanted, int where) noexcept nogil
    cdef void join_runs(self) noexcept nogil
    cdef int64_t run_start(self, int64_t score) noexcept nogil
    cdef int64_t mix(self, int32_t slot, vector[int64_t] left, int depth) noexcept nogil
    cdef bint can_gather(self, int32_t slot) noexcept nogil
    cdef bint fits_picked(self, int32_t e, size_t k) noexcept nogil
    cdef bint pick(self, int32_t e, int64_t wanted, int32_t below, bint top) noexcept nogil
    cdef void choose(self, int32_t e, size_t k, int64_t units, int32_t below, bint top) noexcept nogil
    cdef void next_pass(self) noexcept nogil
    cdef void mark(self, int32_t v, int64_t units, bint exclusive) noexcept nogil
    cdef void climb(self, int32_t v, int32_t below) noexcept nogil
    cdef void take(self, int32_t v, int64_t units) noexcept nogil
    cdef bint few_marked(self, int32_t u, vector[int32_t]* out) noexcept nogil
    cdef bint collect(self, int32_t u, int64_t units, bint exclusive, bint within) noexcept nogil
