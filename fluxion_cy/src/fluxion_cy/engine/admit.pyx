# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Checks whether a single vertex can serve a request, and whether the search below it can find anything."""
from libc.stdint cimport int32_t, int64_t

from fluxion_cy.engine.property_index cimport PropertyIndex
from fluxion_cy.engine.pick cimport SHARED_UNDER_SLOT


cdef class Admit(PropertyIndex):
    """The property index, with the checks of a single vertex."""

    cdef bint rule_holds(self, int32_t i, int32_t v) noexcept nogil:
        """Whether a rule of the constraint holds for a vertex (RFC 31)."""
        cdef Rule rule = self.rules[i]
        cdef int32_t k, low, high, mid
        if rule.kind == 1:
            return self.prop_ok[rule.first + self.V[v].props]
        if rule.kind == 2:
            low, high = rule.first, rule.first + rule.count
            while low < high:
                mid = (low + high) >> 1
                if self.hosts[mid] < self.V[v].name:
                    low = mid + 1
                else:
                    high = mid
            return low < rule.first + rule.count and self.hosts[low] == self.V[v].name
        if rule.kind == 3:
            for k in range(rule.first, rule.first + rule.count):
                if self.rank_spans[k].first <= self.V[v].rank <= self.rank_spans[k].second:
                    return True
            return False
        if rule.kind == 5:
            for k in range(rule.first, rule.first + rule.count):
                if self.rule_holds(self.links[k], v):
                    return True
            return False
        for k in range(rule.first, rule.first + rule.count):
            if not self.rule_holds(self.links[k], v):
                return rule.kind == 6
        return rule.kind != 6

    cdef bint admitted(self, int32_t u) noexcept nogil:
        """Whether status, candidates and constraint admit a vertex."""
        cdef int32_t rank = self.V[u].rank, kind = self.V[u].type
        if self.V[u].down and not self.ever:
            return False
        if rank >= 0 and not self.candidates.empty():
            if rank >= <int32_t> self.candidates.size() or self.candidates[rank] <= 0:
                return False
        if self.constrained:
            if kind == self.node_type or kind == self.storage_type or (not self.node_only and self.V[u].props):
                return self.rule_holds(0, u)
        return True

    cdef bint barred(self, int32_t u) noexcept nogil:
        """Whether `u` has no rank, and a vertex below it has a rank that is not a candidate."""
        cdef int32_t child, rank
        if self.candidates.empty() or self.V[u].rank >= 0 or self.V[u].inner < 0:
            return False
        for child in self.kids[self.V[u].inner]:
            rank = self.V[child].rank
            if rank >= 0 and (rank >= <int32_t> self.candidates.size() or self.candidates[rank] <= 0):
                return True
            if self.barred(child):
                return True
        return False

    cdef int64_t free_units(self, int32_t u) noexcept nogil:
        """The units of `u` that this match may still use."""
        cdef int64_t units = self.V[u].size if self.ever else self.avail(u, self.at, self.end)
        if self.taken[u] == self.match_no:
            units = units - self.taken_units[u] if self.V[u].pool else 0
        return units

    cdef bint anchors(self, int32_t u, int32_t slot) noexcept nogil:
        """Whether `u` has children of every type that the slot needs."""
        cdef int32_t e, inner = self.V[u].inner
        cdef size_t way, k
        if inner < 0:
            return False
        if not self.choice.empty() and self.choice[slot] >= 0:
            for way in range(self.choices[self.choice[slot]].size()):
                for k in range(self.choices[self.choice[slot]][way].size()):
                    e = self.choices[self.choice[slot]][way][k].first
                    if not self._holds(&self.kid_types[inner], self.requests[e].type):
                        break
                else:
                    return True
            return False
        for e in range(self.requests[slot].first, self.requests[slot].first + self.requests[slot].count):
            if not self._holds(&self.kid_types[inner], self.requests[e].type):
                return False
        return True

    cdef bint spans_nodes(self, int32_t slot) noexcept nogil:
        """Whether no type that a slot needs occurs inside nodes, so that the slot may gather vertices above nodes."""
        cdef int32_t e
        for e in range(self.requests[slot].first, self.requests[slot].first + self.requests[slot].count):
            if self.requests[e].type < 0 or self.within_nodes[self.requests[e].type]:
                return False
        return True

    cdef bint pruned(self, int32_t u, int32_t lo, int32_t n, bint x) noexcept nogil:
        """Whether the exclusivity of `u`, or the amounts below it, rule out a request that it would serve."""
        cdef int32_t e
        for e in range(lo, lo + n):
            if not self.requests[e].slot:
                if self.requests[e].type != self.V[u].type:
                    continue
                if x and self.requests[e].shared:
                    self.problem, self.problem_vertex = SHARED_UNDER_SLOT, u
                    return True
                if (x or self.requests[e].exclusive) and self.barred(u):
                    return True
                if (x or self.requests[e].exclusive) and not self.V[u].pool:
                    if self.touched[u] == self.match_no or (not self.ever and self.busy(u, self.at, self.end)):
                        return True
            if self.requests[e].count:
                if not self.fits(u, self.needs[e].data(), self.at, self.end, self.ever):
                    return True
        return False

    cdef bint hopeless(self, int32_t u, int32_t lo, int32_t n) noexcept nogil:
        """Whether too little is free below `u` for one unit of each request of the level."""
        cdef int32_t e
        for e in range(lo, lo + n):
            if self.fits(u, self.needs[e].data(), self.at, self.end, self.ever):
                return False
        return True
