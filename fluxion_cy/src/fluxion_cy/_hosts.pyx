# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""What R_lite says: the cores and gpus of the last result by the node that they lie below, as idsets (RFC 22)."""
from libc.stdint cimport int32_t, int64_t
from libcpp.algorithm cimport sort
from libcpp.pair cimport pair
from libcpp.string cimport string, to_string
from libcpp.vector cimport vector

from fluxion_cy._pick cimport Pick


cdef string spans(vector[int64_t]& numbers) noexcept nogil:
    """`0-3,7` for the numbers 7, 0, 1, 2, 3; each once, ascending. Sorts them."""
    cdef string text
    cdef size_t k = 0
    cdef int64_t low, high
    sort(numbers.begin(), numbers.end())
    while k < numbers.size():
        low = high = numbers[k]
        while k < numbers.size() and numbers[k] <= high + 1:
            high = numbers[k]
            k += 1
        if not text.empty():
            text.append(b",")
        text.append(to_string(low))
        if high > low:
            text.append(b"-")
            text.append(to_string(high))
    return text


cdef class Hosts(Pick):
    """Picking, with what was picked by node."""

    def __init__(self):
        super().__init__()
        self.node_type, self.storage_type = self.type_ids["node"], self.type_ids["storage_node"]
        self.core_type, self.gpu_type = self.type_ids["core"], self.type_ids["gpu"]

    def by_host(self):
        """(node, its rank, idset of cores, idset of gpus) by rank, and a vertex that no idset can hold, or -1.

        Nodes of one rank stand in the order in which they were found.
        """
        cdef size_t k, i
        cdef int32_t wrong
        with nogil:
            wrong = self.gather_shares()
        found = []
        for k in range(self.by_rank.size()):
            i = self.by_rank[k].second
            found.append((self.hosts_found[i], self.by_rank[k].first,
                          spans(self.shares[i].first).decode(), spans(self.shares[i].second).decode()))
        return found, wrong

    cdef int32_t host_above(self, int32_t v) noexcept nogil:
        v = self.V[v].parent
        while v >= 0 and self.V[v].type != self.node_type and self.V[v].type != self.storage_type:
            v = self.V[v].parent
        return v

    cdef size_t share_of(self, int32_t host) noexcept nogil:
        """The index of a node's share; a new one where it has none. What lies below one node comes in a row."""
        cdef size_t new = self.shares.size()
        if new > 0 and self.hosts_found[new - 1] == host:
            return new - 1
        if self.place.count(host):
            return self.place[host]
        self.place[host] = new
        self.hosts_found.push_back(host)
        self.by_rank.push_back(pair[int64_t, int32_t](self.V[host].rank, <int32_t> new))
        self.shares.resize(new + 1)
        return new

    cdef int32_t gather_shares(self) noexcept nogil:
        """Gathers the ids by node; answers the first vertex whose id, or whose node's rank, is negative, or -1."""
        cdef size_t k, i
        cdef int32_t v, host, kind
        self.shares.clear()
        self.hosts_found.clear()
        self.by_rank.clear()
        self.place.clear()
        for k in range(self.result.size()):
            v = self.result[k].vertex
            kind = self.V[v].type
            if kind != self.core_type and kind != self.gpu_type:
                continue
            host = self.host_above(v)
            if host < 0:
                continue
            if self.V[host].rank < 0:
                return host
            if self.V[v].id < 0:
                return v
            i = self.share_of(host)
            if kind == self.core_type:
                self.shares[i].first.push_back(self.V[v].id)
            else:
                self.shares[i].second.push_back(self.V[v].id)
        sort(self.by_rank.begin(), self.by_rank.end())
        return -1
