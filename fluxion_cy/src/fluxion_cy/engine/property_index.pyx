# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""An index of properties. If a constraint requires a property, a match visits only the vertices that have it.

The index changes no result: the constraint would exclude the other vertices, and the order of those visited is the same.
"""
from libc.stdint cimport int32_t, int64_t, uint64_t
from libcpp.algorithm cimport sort
from libcpp.pair cimport pair
from libcpp.vector cimport vector

from fluxion_cy.engine.rlite cimport RLite

cdef uint64_t MAX_WEIGHT = 0xFFFFFFFFFFFFFFFF
cdef size_t WORTH_IT = 4  # a vertex must have this many times as many children as the index has candidates


cdef class PropertyIndex(RLite):
    """`Pick` with an index of properties."""

    def __init__(self):
        super().__init__()
        self.selective, self.sole = False, -1

    def index(self):
        """Rebuilds the index."""
        cdef int32_t v
        self.having.assign(len(self.props), vector[int32_t]())
        for v in range(<int32_t> self.V.size()):
            if self.V[v].alive and self.V[v].props:
                self.having[self.V[v].props].push_back(v)

    def set_props(self, int32_t v, properties):
        """Replaces the properties of vertex `v`."""
        cdef int32_t before = self.V[v].props
        cdef size_t k
        RLite.set_props(self, v, properties)
        self.having.resize(len(self.props))
        if before:
            for k in range(self.having[before].size()):
                if self.having[before][k] == v:
                    self.having[before][k] = self.having[before].back()
                    self.having[before].pop_back()
                    break
        if self.V[v].props:
            self.having[self.V[v].props].push_back(v)

    cdef bint few_children(self, int32_t u, int32_t lo, int32_t n, bint stop, vector[int32_t]* out) noexcept nogil:
        """Collects the children of `u` that constraint and candidates admit, in the policy's order.

        Returns False if all children must be visited: unless constraints apply to the types of all children, and at most
        one request can match them. With several requests, an excluded child matters, too.
        """
        cdef int32_t e, v, inner = self.V[u].inner, serving = 0
        cdef size_t k, j, total = 0
        cdef uint64_t weight
        cdef bint live = stop and not self.live_desc[inner].empty()
        cdef vector[pair[pair[uint64_t, int64_t], int32_t]] row
        for k in range(self.kid_types[inner].size()):
            if self.kid_types[inner][k] != self.node_type and self.kid_types[inner][k] != self.storage_type:
                return False
        for e in range(lo, lo + n):
            if self.requests[e].slot or self.requests[e].type in (self.node_type, self.storage_type):
                serving += 1
        if serving > 1:
            return False
        if self.sole >= 0 and self.V[self.sole].parent == u:
            out.push_back(self.sole)
            return True
        if not self.selective:
            return False
        for k in range(self.chosen.size()):
            total += self.having[self.chosen[k]].size()
        if total * WORTH_IT > self.kids[inner].size():
            return False
        for k in range(self.chosen.size()):
            for j in range(self.having[self.chosen[k]].size()):
                v = self.having[self.chosen[k]][j]
                if self.V[v].parent != u or not self.V[v].alive:
                    continue
                weight = 0
                if live:
                    weight = self.weight[self.V[v].inner] if self.V[v].inner >= 0 else MAX_WEIGHT
                    weight = ~weight
                if stop:
                    row.push_back(pair[pair[uint64_t, int64_t], int32_t](
                        pair[uint64_t, int64_t](weight, -self.V[v].uniq), v))
                else:
                    row.push_back(pair[pair[uint64_t, int64_t], int32_t](pair[uint64_t, int64_t](
                        <uint64_t> (self.sign * self.V[v].id) ^ (<uint64_t> 1 << 63), self.V[v].order), v))
        sort(row.begin(), row.end())
        for k in range(row.size()):
            out.push_back(row[k].second)
        return True
