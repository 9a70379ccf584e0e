# One match: the request, the constraint and the groups found, all as C++ vectors.
from libc.stdint cimport int32_t, int64_t, uint8_t
from libcpp.pair cimport pair
from libcpp.vector cimport vector

from fluxion_cy._plans cimport Entry, Plans

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
    int64_t most        # what an endless supply would give
    uint8_t slot
    uint8_t exclusive   # asked for
    uint8_t shared      # exclusive: false was written

cdef struct Rule:
    int32_t kind
    int32_t first
    int32_t count

cdef struct Piece:
    int32_t vertex
    int64_t units

cdef struct Group:
    int64_t score
    int64_t count
    int64_t left        # units of a pool not yet given to a slot
    int32_t vertex      # the vertex, or a slot's first piece
    int32_t first       # a slot's pieces
    int32_t pieces
    int32_t rank
    int32_t node        # natural order of the node that it belongs to (policy pack)
    int64_t node_free   # what that node has free
    uint8_t exclusive

# ((-preference, free on its node), ((order of its node, signed score), (natural order, index of the group))):
# ascending is best first; the two about nodes are 0 but for policy pack.
ctypedef pair[pair[double, int64_t], pair[pair[int64_t, int64_t], pair[int64_t, int64_t]]] RankedGroup

cdef enum Ordering:
    BY_ID = 0
    BY_CLASS = 1     # property perf_class, best class first
    BY_RUN = 2       # at the top level, by the first id of a run of consecutive ids
    BY_FILL = 3      # the fullest node first

cdef class Select(Plans):
    cdef vector[Request] requests
    cdef int32_t tops
    cdef int32_t top_slots
    cdef vector[vector[int64_t]] needs        # per request: pruned types that one unit of it needs below
    cdef vector[int64_t] top_need             # pruned types of the whole request
    cdef vector[Rule] rules
    cdef vector[int32_t] links
    cdef vector[uint8_t] prop_ok
    cdef vector[int32_t] hosts
    cdef vector[pair[int64_t, int64_t]] rank_spans
    cdef bint constrained
    cdef bint node_only
    cdef int32_t node_type
    cdef int32_t storage_type
    # policy
    cdef int64_t sign
    cdef int ordering
    cdef vector[int64_t] perf_class           # per property set
    cdef vector[int64_t] run_scores
    cdef int32_t node_now
    cdef int64_t node_free_now
    cdef bint node_centric
    cdef bint stop
    cdef vector[uint8_t] policy_whole         # per type: taken with its whole subtree, by policy
    cdef vector[uint8_t] whole                # the same for this match
    # this match
    cdef int64_t at
    cdef int64_t end
    cdef bint ever
    cdef bint gather
    cdef int problem
    cdef int32_t problem_vertex
    cdef int64_t factor_sum
    cdef vector[int64_t] candidates
    cdef bint capped
    cdef vector[double] preference
    cdef vector[vector[Group]] groups
    cdef vector[int64_t] found
    cdef vector[Piece] pieces
    cdef vector[int64_t] rank_used
    cdef vector[int64_t] rank_found           # slots of a rank found in this pass
    cdef vector[vector[int32_t]] by_id        # per inner vertex: children in the order of their scores
    cdef vector[vector[int32_t]] inner_kinds  # per inner vertex: types of children that have children
    cdef vector[RankedGroup] keys
    cdef vector[Group] sorted_groups
    cdef vector[int32_t] mark_pass
    cdef vector[int64_t] mark_units
    cdef vector[uint8_t] mark_exclusive
    cdef vector[int32_t] taken
    cdef vector[int64_t] taken_units
    cdef vector[int32_t] touched
    cdef vector[uint8_t] nodes_below
    cdef int32_t match_no
    cdef int32_t pass_no
    cdef vector[Entry] result
    cdef vector[Entry] merged
    cdef public bint deep
    cdef object _by_rank
    cdef int64_t _ranks_version
    cdef bint rule_holds(self, int32_t i, int32_t v) noexcept nogil
    cdef bint anchors(self, int32_t u, int32_t slot) noexcept nogil
    cdef bint admitted(self, int32_t u) noexcept nogil
    cdef int64_t free_units(self, int32_t u) noexcept nogil
    cdef bint pruned(self, int32_t u, int32_t lo, int32_t n, bint x) noexcept nogil
    cdef bint hopeless(self, int32_t u, int32_t lo, int32_t n) noexcept nogil
    cdef bint walk(self, int32_t u, int32_t lo, int32_t n, int mode, bint x_in) noexcept nogil
    cdef bint satisfied(self, int32_t u, int32_t e, int32_t slot, bint x, bint anchor) noexcept nogil
    cdef bint slots_in_turn(self, int32_t u, int32_t e) noexcept nogil
    cdef bint explore(self, int32_t u, int32_t lo, int32_t n, int mode, bint x, int64_t times) noexcept nogil
    cdef bint explore_all(self, int32_t inner, int32_t lo, int32_t n, int mode, bint x) noexcept nogil
    cdef bint explore_some(self, int32_t inner, int32_t lo, int32_t n, int mode, bint x, int64_t times) noexcept nogil
    cdef double liking(self, int32_t v) noexcept nogil
    cdef bint passes(self, int32_t inner, int32_t lo, int32_t n, int mode) noexcept nogil
    cdef bint in_order(self, int32_t e, int64_t sign) noexcept nogil
    cdef bint unranked(self, int32_t inner) noexcept nogil
    cdef bint fill_slots(self, int32_t u, int32_t slot, int mode) noexcept nogil
    cdef bint fill_one(self, int32_t slot, int64_t* counts, size_t* at, Group* out) noexcept nogil
    cdef int64_t qualified(self, int32_t e) noexcept nogil
    cdef int64_t calc(self, int32_t e, int64_t supply) noexcept nogil
    cdef void rank_groups(self, int32_t e, int64_t wanted, int where) noexcept nogil
    cdef int64_t run_start(self, int64_t score) noexcept nogil
    cdef bint can_gather(self, int32_t slot) noexcept nogil
    cdef int64_t free_below(self, int32_t u) noexcept nogil
    cdef bint pick(self, int32_t e, int64_t wanted, int32_t below, bint top) noexcept nogil
    cdef void choose(self, int32_t e, size_t k, int64_t units, int32_t below) noexcept nogil
    cdef void mark(self, int32_t v, int64_t units, bint exclusive) noexcept nogil
    cdef void climb(self, int32_t v, int32_t below) noexcept nogil
    cdef void take(self, int32_t v, int64_t units) noexcept nogil
    cdef bint collect(self, int32_t u, int64_t units, bint exclusive, bint within) noexcept nogil
    cdef bint one_pass(self, int32_t lo, int32_t n) noexcept nogil
    cdef bint run(self) noexcept nogil
