# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Counts slots per rank, and keeps them within the caps that the candidates set.

Each slot is counted on one rank: that of the vertex at which it is filled, or else that of its first piece or of this
piece's nearest ancestor with a rank. A group of vertices has the slots that were picked below it. A scope is a set of
slots that are counted together: all picks below one vertex, all finds for one request there, or all slots filled at one
vertex. Each scope and rank that occurs has a tally, so that nothing must be cleared, and other ranks cost nothing.
"""
from libc.stdint cimport int32_t, int64_t, uint64_t
from libcpp.vector cimport vector

from fluxion_cy.engine.planner cimport Planner

cdef size_t FEWEST = 64
cdef uint64_t MIX = 0x9E3779B97F4A7C15


cdef class Caps(Planner):
    """The planner, with the requests of one match, and the slots that it allows and uses on each rank."""

    def __init__(self):
        super().__init__()
        self.capped = self.thrifty = self.stretches = False
        self.short_rank, self.scope, self.oldest, self.tallied = -1, 0, 1, 0

    def short(self):
        """The first rank whose cap excluded something in the last match within caps, or -1."""
        return self.short_rank

    def tallies_made(self):
        """The number of tallies of the last match, a measure of the cost of caps."""
        return self.tallied

    cdef void prepare_caps(self) noexcept nogil:
        """Determines which requests contain slots, and how many slots enclose each request."""
        cdef int32_t n = <int32_t> self.requests.size(), i, c, tops = 0
        cdef Request* r
        self.counted.assign(n, 0)
        self.level.assign(n, 0)
        self.above.assign(n, 0)
        self.used.assign(n + 1, 0)
        self.offered.assign(n, 0)
        if <int32_t> self.picked.size() < n:
            self.picked.resize(n)
        self.stretches = False
        for i in range(n):
            r = &self.requests[i]
            for c in range(r.first, r.first + r.count):
                self.above[c] = i + 1
                self.level[c] = self.level[i] + r.slot
        for i in range(n - 1, -1, -1):
            r = &self.requests[i]
            self.counted[i] = self.counted[i] or r.slot
            if self.counted[i] and self.above[i]:
                if self.counted[self.above[i] - 1]:
                    self.stretches = True
                self.counted[self.above[i] - 1] = 1
            if self.counted[i] and r.most > r.low:
                self.stretches = True
        for i in range(self.tops):
            tops += self.counted[i]
        self.stretches = self.stretches or tops > 1

    cdef void forget_uses(self) noexcept nogil:
        """Drops all finds and picks."""
        self.uses.clear()
        self.oldest, self.tallied, self.short_rank = self.scope + 1, 0, -1
        self.used[0] = self.next_scope()

    cdef int64_t next_scope(self) noexcept nogil:
        self.scope += 1
        return self.scope

    cdef size_t place_of(self, int64_t scope, int32_t rank, int32_t level) noexcept nogil:
        """The index of the tally of a scope and rank, or of a free place for it."""
        cdef size_t mask = self.tallies.size() - 1
        cdef uint64_t mixed = (<uint64_t> scope * MIX) ^ ((<uint64_t> rank << 20) + <uint64_t> level)
        cdef size_t i
        mixed *= MIX
        i = <size_t> (mixed >> 20) & mask
        while self.tallies[i].scope >= self.oldest and (
                self.tallies[i].scope != scope or self.tallies[i].use.rank != rank or self.tallies[i].use.level != level):
            i = (i + 1) & mask
        return i

    cdef int64_t slots_in(self, int64_t scope, int32_t rank, int32_t level) noexcept nogil:
        """The number of slots in a scope that are counted on a rank."""
        cdef size_t i
        if self.tallies.empty():
            return 0
        i = self.place_of(scope, rank, level)
        return self.tallies[i].use.slots if self.tallies[i].scope == scope else 0

    cdef int64_t add(self, int64_t scope, Use use) noexcept nogil:
        """Adds slots to a scope. Returns the new number."""
        cdef size_t i
        if 2 * (self.tallied + 1) > self.tallies.size():
            self.make_room()
        i = self.place_of(scope, use.rank, use.level)
        if self.tallies[i].scope != scope:
            self.tallies[i].scope, self.tallies[i].use = scope, use
            self.tallied += 1
        else:
            self.tallies[i].use.slots += use.slots
        return self.tallies[i].use.slots

    cdef void make_room(self) noexcept nogil:
        """Doubles the places for tallies."""
        cdef vector[Tally] old
        cdef Tally none
        cdef Tally one
        none.scope, none.use.rank, none.use.level, none.use.slots = 0, 0, 0, 0
        old.swap(self.tallies)
        self.tallies.assign(max(FEWEST, 2 * old.size()), none)
        for one in old:
            if one.scope >= self.oldest:
                self.tallies[self.place_of(one.scope, one.use.rank, one.use.level)] = one

    cdef bint has_room(self, int64_t before, int64_t scope, int32_t rank, int32_t level) noexcept nogil:
        """Whether the cap of a rank allows one more slot in addition to those of the two scopes."""
        if self.slots_in(before, rank, level) + self.slots_in(scope, rank, level) < self.candidates[rank]:
            return True
        if self.short_rank < 0:
            self.short_rank = rank
        return False

    cdef bint fits_caps(self, int64_t before, int64_t scope, int32_t first, int32_t count) noexcept nogil:
        """Adds all these uses to `scope` if the caps allow them besides those in `scope` and `before`; otherwise none."""
        cdef int32_t i
        cdef Use use
        for i in range(first, first + count):
            use = self.uses[i]
            if self.add(scope, use) + self.slots_in(before, use.rank, use.level) > self.candidates[use.rank]:
                self.give_back(scope, first, i + 1 - first)
                if self.short_rank < 0:
                    self.short_rank = use.rank
                return False
        return True

    cdef void give_back(self, int64_t scope, int32_t first, int32_t count) noexcept nogil:
        """Removes uses from a scope."""
        cdef int32_t i
        cdef Use use
        for i in range(first, first + count):
            use = self.uses[i]
            use.slots = -use.slots
            self.add(scope, use)

    cdef void open_below(self, int32_t e) noexcept nogil:
        """Opens scopes for the finds and picks below one vertex that matches a request."""
        cdef int32_t c
        self.used[e + 1] = self.next_scope()
        self.picked[e].clear()
        for c in range(self.requests[e].first, self.requests[e].first + self.requests[e].count):
            self.offered[c] = self.next_scope()

    cdef void note_picked(self, int32_t e, int32_t first, int32_t count) noexcept nogil:
        """Adds these uses to the picks for a request."""
        if self.above[e]:
            self.picked[self.above[e] - 1].insert(
                self.picked[self.above[e] - 1].end(), self.uses.begin() + first, self.uses.begin() + first + count)

    cdef int32_t close_below(self, int32_t e) noexcept nogil:
        """Appends the picks below a vertex to `uses`, one entry for each rank. Returns the number of entries."""
        cdef int64_t seen = self.next_scope()
        cdef size_t before = self.uses.size()
        cdef Use use
        for use in self.picked[e]:
            if self.slots_in(seen, use.rank, use.level) == 0:
                self.add(seen, use)
                use.slots = self.slots_in(self.used[e + 1], use.rank, use.level)
                self.uses.push_back(use)
        return <int32_t> (self.uses.size() - before)

    cdef int32_t slot_rank(self, int32_t u, int32_t piece) noexcept nogil:
        """The rank on which a slot is counted if it is filled at `u` and begins with `piece`; -1 if there is none."""
        if self.V[u].rank >= 0:
            return self.V[u].rank
        while piece >= 0 and self.V[piece].rank < 0:
            piece = self.V[piece].parent
        return self.V[piece].rank if piece >= 0 else -1
